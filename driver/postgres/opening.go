package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// opening is an attempt to open a connection. pgx tells it of the end.
type opening struct{ end func(error) }

func (o opening) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

func (o opening) TraceConnectEnd(_ context.Context, d pgx.TraceConnectEndData) { o.end(d.Err) }

// TraceQueryStart and TraceQueryEnd do nothing: pgx asks for them.
func (o opening) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (o opening) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
