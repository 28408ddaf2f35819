// Package apiclient is a client of the HTTP API as oapi-codegen makes it from
// docs/openapi.yaml, of the operations that oapi-codegen.yaml names. Tests drive
// a server by it: what a generated client can't do, the document says wrongly. A
// program of yours generates its own.
package apiclient
