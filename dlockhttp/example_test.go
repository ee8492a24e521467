package dlockhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlockhttp"
	_ "github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/fence"
)

// One request per order at a time. Another one meanwhile is answered with 409.
func ExampleHandler() {
	client, err := dlock.Open(context.Background(), "memory:")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	var service *http.ServeMux
	post := func(path string) int {
		w := httptest.NewRecorder()
		service.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
		return w.Code
	}
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "42" {
			fmt.Println("42 again:", post("/orders/42/pay"))
			fmt.Println("another one:", post("/orders/7/pay"))
		}
	})
	byOrder := func(r *http.Request) dlock.Mutex {
		return client.Mutex(dlock.Name("orders", r.PathValue("id")), dlock.Wait(0))
	}
	service = http.NewServeMux()
	service.Handle("POST /orders/{id}/pay", dlockhttp.Handler(pay, byOrder, dlockhttp.Options{}))
	fmt.Println("42:", post("/orders/42/pay"))
	// Output:
	// 42 again: 409
	// another one: 200
	// 42: 200
}

// A holder sends its mark; the resource refuses an older one.
func ExampleSerial() {
	resource := httptest.NewServer(dlockhttp.Serial(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}),
		func(r *http.Request) string { return r.URL.Path }, dlockhttp.Options{}))
	defer resource.Close()
	client := &http.Client{Transport: &dlockhttp.Transport{}}
	write := func(m fence.Mark) int { // a holder gets its mark from fence.Of
		req, err := http.NewRequestWithContext(fence.NewContext(context.Background(), m), "PUT", resource.URL+"/42", nil)
		if err != nil {
			return 0
		}
		res, err := client.Do(req)
		if err != nil {
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	fmt.Println(write(fence.Mark{Token: 1, Owner: "first"}))
	fmt.Println(write(fence.Mark{Token: 2, Owner: "second"}))
	fmt.Println(write(fence.Mark{Token: 1, Owner: "first"}))
	// Output:
	// 200
	// 200
	// 412
}
