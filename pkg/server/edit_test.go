package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a condition lets through (RFC 9110, 13.1.1), of a board at revision 1.
func TestIfMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		match  []string
		status int
	}{
		{[]string{`"1"`}, 200},
		{[]string{`*`}, 200},
		{[]string{`W/"1"`}, 200}, // what a proxy that compresses makes of it
		{[]string{`"2", "1"`}, 200},
		{[]string{`"2","1","3"`}, 200},
		{[]string{`"2",  W/"1" ,`}, 200},
		{[]string{`"2"`}, 412},
		{[]string{`"2", "3"`}, 412},
		{[]string{`""`}, 412},
		{[]string{`"01"`}, 412},
		{[]string{`1`}, 412},
		{[]string{`W/*`}, 412},
		{[]string{`w/"1"`}, 412},
		{[]string{`*, "2"`}, 412},
		{[]string{`"2", *`}, 412},
		{[]string{`,`}, 412},
		{[]string{``}, 422},
		{[]string{` `}, 422},
		{[]string{`"1"`, `"2"`}, 422},
		{[]string{`*`, `"2"`}, 422},
		{[]string{strings.Repeat(`"2",`, 20)}, 422},
	} {
		b := setup(t)
		editor := b.role(t, "editor", "acme", "e")
		b.board(t, "b", "todo")
		for _, method := range []string{http.MethodPut, http.MethodDelete} {
			body := ""
			if method == http.MethodPut {
				body = `{"name":"b","columns":[{"id":"todo","name":"todo"}]}` // as it is
			}
			req, err := http.NewRequestWithContext(t.Context(), method, b.url+acme+"/boards/b", strings.NewReader(body))
			require.NoError(t, err)
			req.Header = http.Header{"Authorization": {"Bearer " + editor}, "Content-Type": {"application/json"}, "If-Match": c.match}
			a := b.do(t, req)
			require.Equal(t, c.status, a.status, "%s %q: %s", method, c.match, a.body)
			if c.status == 422 {
				require.True(t, a.names(t, "header.If-Match"), a.body)
			}
		}
	}
}
