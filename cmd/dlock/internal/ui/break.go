package ui

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// breaking is the request of the page to end a hold.
type breaking struct {
	Backend int    `json:"backend"`
	Name    string `json:"name"`
	Token   string `json:"token"` // fencing token of the hold; empty where there are none
	Force   bool   `json:"force"`
}

// breakHold ends a hold, and never that of a successor. The secret is in the Authorization header,
// as a bearer token.
func (s *Server) breakHold(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, format string, args ...any) {
		answer(w, status, map[string]string{"error": fmt.Sprintf(format, args...)})
	}
	if s.options.Secret == "" {
		refuse(http.StatusForbidden, "this page is read-only; start it with \"dlock ui --allow-break\" to end holds")
		return
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !same(given, s.options.Secret) {
		s.options.Log.Warn("refused to end a hold: wrong token", "client", r.RemoteAddr)
		refuse(http.StatusUnauthorized, "that is not the token that dlock ui printed when it was started")
		return
	}
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience)) // if the writer has one
	var b breaking
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		refuse(http.StatusBadRequest, "want a JSON object with backend, name, token and force: %v", err)
		return
	}
	if b.Backend < 0 || b.Backend >= len(s.stations) {
		refuse(http.StatusBadRequest, "backend %d does not exist; 0 to %d are allowed", b.Backend, len(s.stations)-1)
		return
	}
	token, err := strconv.ParseUint(b.Token, 10, 64)
	if err != nil && b.Token != "" {
		refuse(http.StatusBadRequest, "token %q: want the number that the page shows", b.Token)
		return
	}
	st := s.stations[b.Backend]
	c, err := st.client(r.Context())
	if err == nil {
		var opts []dlock.BreakOption
		if b.Force {
			opts = append(opts, dlock.Force())
		}
		err = st.breaks.Break(r.Context(), c, b.Name, dlock.Token(token), opts...)
	}
	log := s.options.Log.With("name", b.Name, "token", token, "force", b.Force, "backend", st.Title, "client", r.RemoteAddr)
	if err != nil {
		log.Warn("ending a hold failed", "err", err)
		refuse(failure(err), "%v", err)
		return
	}
	log.Info("a hold was ended")
	answer(w, http.StatusOK, struct{}{})
}

// same compares in constant time, so the time does not show where the two differ.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// failure is the status for an error of Break.
func failure(err error) int {
	switch {
	case errors.Is(err, dlock.ErrNotHeld):
		return http.StatusConflict
	case errors.Is(err, dlock.ErrInvalid), errors.Is(err, dlock.ErrInvalidName):
		return http.StatusBadRequest
	case errors.Is(err, dlock.ErrUnsupported):
		return http.StatusNotImplemented
	default:
		return http.StatusBadGateway
	}
}
