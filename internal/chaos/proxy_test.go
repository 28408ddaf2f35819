package chaos_test

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/internal/chaos"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers each line with the line, and tells of each.
func echo(t *testing.T) (addr string, got chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	got = make(chan string, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					got <- lines.Text()
					_, _ = io.WriteString(c, lines.Text()+"\n")
				}
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String(), got
}

func setup(t *testing.T) (p *chaos.Proxy, got chan string, dial func() net.Conn) {
	t.Helper()
	addr, got := echo(t)
	p, err := chaos.Listen(t.Context(), addr)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p, got, func() net.Conn {
		c, err := net.Dial("tcp", p.Addr())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		return c
	}
}

func ask(t *testing.T, c net.Conn, line string) {
	t.Helper()
	_, err := io.WriteString(c, line+"\n")
	require.NoError(t, err)
	answer, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, line, strings.TrimSpace(answer))
}

func TestCutEndsConnectionsAndRefusesNewOnes(t *testing.T) {
	t.Parallel()
	p, _, dial := setup(t)
	c := dial()
	ask(t, c, "one")
	p.Cut()
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	if c, err := net.Dial("tcp", p.Addr()); err == nil { // else it was reset even sooner
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NoError(t, c.Close())
	}
	p.Mend()
	ask(t, dial(), "two")
}

func TestStallHoldsBackAndDeliversLate(t *testing.T) {
	t.Parallel()
	p, got, dial := setup(t)
	c := dial()
	ask(t, c, "one")
	require.Equal(t, "one", <-got)
	p.Stall()
	p.Stall()
	_, err := io.WriteString(c, "late\n")
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err, "nothing is answered")
	require.Empty(t, got, "nothing has arrived")
	require.NoError(t, c.Close())
	p.Mend()
	require.Equal(t, "late", <-got, "its sender has left")
	ask(t, dial(), "two")
}

func TestCloseEndsAStall(t *testing.T) {
	t.Parallel()
	p, _, dial := setup(t)
	c := dial()
	p.Stall()
	_, err := io.WriteString(c, "never\n")
	require.NoError(t, err)
	p.Close()
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
}
