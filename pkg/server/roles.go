package server

import "github.com/danielgtaylor/huma/v2"

// forAdmins marks an operation that is for admins alone.
func forAdmins(o *huma.Operation) { mark(o, "admins", true) }
