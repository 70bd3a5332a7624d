// go get github.com/beanstalkd/go-beanstalk
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/beanstalkd/go-beanstalk"
)

func address() string {
	if address, ok := os.LookupEnv("BSD_ADDRESS"); ok {
		return address
	}
	return "127.0.0.1:11300"
}

func send(to string) error {
	if !strings.Contains(to, "@") {
		return fmt.Errorf("%s is no address", to)
	}
	fmt.Println("sent to", to)
	return nil
}

func put(addresses []string) error {
	conn, err := beanstalk.Dial("tcp", address())
	if err != nil {
		return err
	}
	defer conn.Close()
	tube := beanstalk.NewTube(conn, "mail")
	for _, to := range addresses {
		if _, err := tube.Put([]byte(to), 1024, 0, time.Minute); err != nil {
			return err
		}
	}
	return nil
}

func work() error {
	conn, err := beanstalk.Dial("tcp", address())
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	tubes := beanstalk.NewTubeSet(conn, "mail")
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		// The wait is short so that a stop is noticed.
		id, body, err := tubes.Reserve(2 * time.Second)
		if errors.Is(err, beanstalk.ErrTimeout) || errors.Is(err, beanstalk.ErrDeadline) {
			continue
		}
		if err != nil {
			return err
		}
		if err := send(string(body)); err != nil {
			log.Println("failed:", err)
			// The policy of the tube counts this, delays the job, and sets it aside in the end.
			err = conn.Release(id, 1024, 0)
			if err != nil {
				return err
			}
			continue
		}
		if err := conn.Delete(id); err != nil {
			return err
		}
	}
}

func main() {
	run := work
	if len(os.Args) > 1 && os.Args[1] == "put" {
		run = func() error { return put(os.Args[2:]) }
	}
	// An end of the connection ends the program: what runs it starts it again.
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
