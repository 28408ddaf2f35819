// Command openapi writes the API's OpenAPI document to standard output.
package main

import (
	"fmt"
	"os"

	"github.com/triggerd/triggerd/pkg/server"
)

func main() {
	doc, err := server.NewAPI(server.APIParams{}).OpenAPIYAML()
	if err == nil {
		_, err = os.Stdout.Write(doc)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}
