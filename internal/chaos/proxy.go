// Package chaos puts faults between a client and a server: for tests.
package chaos

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Proxy passes TCP connections on to a server, until it is told to cut or to
// stall them. Safe for concurrent use.
type Proxy struct {
	target   string
	listener net.Listener
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	stall chan struct{} // closed when bytes may pass
	conns map[*net.TCPConn]struct{}
}

// Listen starts a proxy to a server, "host:port", on a port of 127.0.0.1.
func Listen(ctx context.Context, target string) (*Proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", target, err)
	}
	p := &Proxy{target: target, listener: listener, stall: make(chan struct{}), conns: make(map[*net.TCPConn]struct{})}
	close(p.stall)
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns the address to connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut resets all connections, and each new one at once, until Mend. What was
// on its way may have arrived or not.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		reset(c)
	}
}

// Stall lets no byte through until Mend: connections stay open and can be
// made, and nothing is answered. What was sent meanwhile arrives afterwards,
// though its sender may have left.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stall:
		p.stall = make(chan struct{})
	default:
	}
}

// Mend ends Cut and Stall.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
	select {
	case <-p.stall:
	default:
		close(p.stall)
	}
}

// Close resets all connections and returns when nothing of the proxy runs.
func (p *Proxy) Close() {
	p.cancel()
	_ = p.listener.Close()
	p.Cut()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(c.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	if !p.add(client) {
		return
	}
	defer p.remove(client)
	c, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	server := c.(*net.TCPConn)
	if !p.add(server) {
		return
	}
	defer p.remove(server)
	var back sync.WaitGroup
	back.Go(func() { p.pass(client, server) })
	p.pass(server, client)
	back.Wait()
}

// add keeps a connection, unless connections are cut.
func (p *Proxy) add(c *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		reset(c)
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) remove(c *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

// pass passes on what comes from one side, until either side ends.
func (p *Proxy) pass(to, from *net.TCPConn) {
	// What was read is passed on before the end is.
	defer func() { _ = to.CloseWrite() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			p.mu.Lock()
			stall := p.stall
			p.mu.Unlock()
			select {
			case <-stall:
			case <-p.ctx.Done():
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				reset(from)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// reset closes a connection so that the other side sees it reset.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
