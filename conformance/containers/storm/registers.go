package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/storm/check"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
	"github.com/dlock-go/dlock/fence"
)

// registers are two numbers for each lock, in a process of their own, which no fault concerns. A
// holder reads both, and writes both with one added. The fenced one admits a reader and a writer by
// its mark, as package fence does; the plain one trusts that its writers hold the lock. It is the
// control: if a storm ends and no update of it is lost, then no holder was in its work when its
// lock passed to another one, and the storm proves little.
//
// They also keep the owner that a holder last offered for each lock, so that another process can
// join its hold.
type registers struct {
	w     *history.Writer
	fence fence.Local

	mu     sync.Mutex
	values map[string]*[2]int64 // fenced, plain
	offers map[string]string
}

// question is what a client sends to the registers, and answer what it gets. Each is a line.
type question struct {
	What          string // "read", "write", "offer", "take"
	Name          string
	Mark          string // empty: the backend has no tokens
	Fenced, Plain int64
	Owner         string
}

type answer struct {
	Fenced, Plain int64
	Stale         bool // the fenced register refused the mark
	Owner         string
}

// registersProgram runs the registers in a process. Its first line is their address.
var registersProgram = service.NewProgram("registers", func(in *bufio.Scanner, out io.Writer, args []string) error {
	w, err := history.NewWriter(filepath.Join(args[0], "registers.jsonl"))
	if err != nil {
		return err
	}
	addr, stop, err := serveRegisters(w)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintln(out, addr)
	for in.Scan() {
	}
	return nil
})

// serveRegisters serves registers until stop.
func serveRegisters(w *history.Writer) (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	r := &registers{w: w, values: map[string]*[2]int64{}, offers: map[string]string{}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()
	return l.Addr().String(), func() { l.Close() }, nil
}

func (r *registers) serve(c net.Conn) {
	defer c.Close()
	answers := json.NewEncoder(c)
	for questions := json.NewDecoder(c); ; {
		var q question
		if questions.Decode(&q) != nil || answers.Encode(r.answer(q)) != nil {
			return
		}
	}
}

func (r *registers) answer(q question) (a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.values[q.Name]
	if v == nil {
		v = &[2]int64{}
		r.values[q.Name] = v
	}
	switch q.What {
	case "offer":
		r.offers[q.Name] = q.Owner
	case "take":
		a.Owner = r.offers[q.Name]
	case "read":
		_, err := r.admit(q)
		a = answer{Fenced: v[0], Plain: v[1], Stale: err != nil}
	case "write":
		m, err := r.admit(q)
		a.Stale = err != nil
		e := history.Event{Kind: history.Write, Proc: -1, Text: check.Fenced, Name: q.Name, ID: m.Owner, Token: uint64(m.Token), Count: q.Fenced}
		if err != nil {
			e.Class = history.Stale
		} else {
			v[0] = q.Fenced
		}
		if q.Mark != "" {
			r.w.Add(e)
		}
		v[1] = q.Plain
		r.w.Add(history.Event{Kind: history.Write, Proc: -1, Text: check.Plain, Name: q.Name, Count: q.Plain})
	}
	return a
}

// admit admits a holder to the fenced register: a reader too, since an older holder must not write
// once a later one has read.
func (r *registers) admit(q question) (fence.Mark, error) {
	if q.Mark == "" {
		return fence.Mark{}, errors.New("the backend has no tokens")
	}
	m, err := fence.ParseMark(q.Mark)
	if err != nil {
		return m, err
	}
	done, err := r.fence.Admit(context.Background(), q.Name, m)
	if err == nil {
		done()
	}
	return m, err
}

// desk is a client of the registers, for one goroutine.
type desk struct {
	c net.Conn
	*json.Encoder
	*json.Decoder
}

func openDesk(addr string) (*desk, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &desk{c, json.NewEncoder(c), json.NewDecoder(c)}, nil
}

// ask asks the registers. They always answer while the storm lasts.
func (d *desk) ask(q question) (a answer, err error) {
	if err = d.Encode(q); err == nil {
		err = d.Decode(&a)
	}
	return a, err
}
