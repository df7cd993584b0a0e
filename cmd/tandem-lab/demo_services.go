package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/deploy"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// servicePrograms are the programs of the services by the names that --with takes.
var servicePrograms = []struct{ name, program string }{
	{"redis", "redis-server"},
	{"prometheus", "prometheus"},
	{"jaeger", "jaeger"},
}

func serviceNames() (names []string) {
	for _, s := range servicePrograms {
		names = append(names, s.name)
	}
	return names
}

// services are the servers of other projects that a demo runs with. An address is empty
// where there is no such service.
type services struct {
	paths                     map[string]string // of the programs, by name of the service
	dir                       string            // what they write; "": nothing yet
	redis, prometheus, jaeger string            // where they answer
	running                   []*process.Process
	logs                      []*os.File // of those that run
}

// findServices looks the programs up, before anything is started. otlp is where traces go
// already.
func findServices(names []string, otlp string) (*services, error) {
	found := &services{paths: make(map[string]string)}
	var missing []string
	for _, name := range names {
		i := slices.Index(serviceNames(), name)
		if i < 0 {
			return nil, fmt.Errorf("--with: %q is none of %s", name, strings.Join(serviceNames(), ", "))
		}
		program := servicePrograms[i].program
		path, err := exec.LookPath(program)
		if err != nil {
			missing = append(missing, program)
		}
		found.paths[name] = path
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("--with %s: not on the PATH: %s; install what is missing, or leave it out", strings.Join(names, ","), strings.Join(missing, ", "))
	}
	if found.wants("jaeger") && otlp != "" {
		return nil, errors.New("--with jaeger beside --otlp-endpoint or --trace: traces go to one of them")
	}
	return found, nil
}

func (s *services) wants(name string) bool { return s.paths[name] != "" }

// start runs a program, whose output goes to a file of its name. A URL answers 200 once it is
// ready; without one it is not waited for.
func (s *services) start(ctx context.Context, name, ready string, args ...string) error {
	log, err := process.CreateLog(filepath.Join(s.dir, name+".log"))
	if err != nil {
		return err
	}
	s.logs = append(s.logs, log)
	p, err := process.Start(name, log, nil, s.paths[name], args...)
	if err != nil {
		return err
	}
	s.running = append(s.running, p)
	if ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	return p.Answers(ctx, ready)
}

// startUsed starts what the gateway uses, and adds to its settings where that is.
func (s *services) startUsed(ctx context.Context, settings map[string]string) (err error) {
	if len(s.paths) == 0 {
		return nil
	}
	if s.dir, err = os.MkdirTemp("", "tandem-demo-"); err != nil {
		return fmt.Errorf("directory of the services: %w", err)
	}
	free, err := process.FreeAddresses(4)
	if err != nil {
		return err
	}
	if s.wants("redis") {
		if err := s.startRedis(ctx, free[0]); err != nil {
			return err
		}
		settings["redis"] = s.redis
	}
	if s.wants("jaeger") {
		otlp := free[1]
		s.jaeger = "http://" + free[2]
		err := s.start(ctx, "jaeger", s.jaeger+"/api/services", "--config", "yaml:"+deploy.Jaeger,
			"--set", "receivers.otlp.protocols.http.endpoint="+otlp,
			"--set", "extensions.jaeger_query.http.endpoint="+free[2], "--set", "extensions.jaeger_query.grpc.endpoint="+free[3])
		if err != nil {
			return err
		}
		settings["otlp-endpoint"] = "http://" + otlp
	}
	return nil
}

func (s *services) startRedis(ctx context.Context, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address of redis: %w", err)
	}
	s.redis = address
	if err := s.start(ctx, "redis", "", "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", s.dir,
		"--logfile", filepath.Join(s.dir, "redis.log")); err != nil {
		return err
	}
	client := s.redisClient()
	defer func() { _ = client.Close() }()
	if err := client.Ping(ctx).Err(); err != nil {
		text, _ := os.ReadFile(filepath.Join(s.dir, "redis.log")) // the error says enough
		return fmt.Errorf("redis does not answer: %w: %s", err, text)
	}
	return nil
}

// redisClient tries again for some ten seconds while nothing listens.
func (s *services) redisClient() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.redis, MaxRetries: 100, MinRetryBackoff: 100 * time.Millisecond, MaxRetryBackoff: 100 * time.Millisecond})
}

// startPrometheus starts it, where it is wanted, once the gateway listens.
func (s *services) startPrometheus(ctx context.Context, admin string, engines childEngines) error {
	if !s.wants("prometheus") {
		return nil
	}
	free, err := process.FreeAddresses(1)
	if err != nil {
		return err
	}
	config := filepath.Join(s.dir, "prometheus.yml")
	err = errors.Join(os.WriteFile(filepath.Join(s.dir, "alerts.yml"), deploy.AlertRules, 0o600),
		os.WriteFile(config, []byte(scrapeConfig(admin, engines)), 0o600))
	if err != nil {
		return fmt.Errorf("configure prometheus: %w", err)
	}
	s.prometheus = "http://" + free[0]
	return s.start(ctx, "prometheus", s.prometheus+"/-/ready", "--config.file", config, "--storage.tsdb.path", filepath.Join(s.dir, "prometheus"),
		"--web.listen-address", free[0], "--enable-feature", "exemplar-storage", "--log.level", "error")
}

// scrapeConfig has the jobs and labels of deploy/prometheus.yml.
func scrapeConfig(admin string, engines childEngines) string {
	var c strings.Builder
	fmt.Fprintf(&c, "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [alerts.yml]\nscrape_configs:\n"+
		"- job_name: tandem\n  static_configs: [{targets: [%q]}]\n- job_name: engines\n  static_configs:\n", admin)
	for _, e := range engines {
		fmt.Fprintf(&c, "  - {targets: [%q], labels: {role: %s}}\n", e.addr, e.role)
	}
	return c.String()
}

// show waits until each service has what it is for, and prints where to look: keys, targets that
// are scraped, the trace of a request.
func (s *services) show(ctx context.Context, print func(format string, args ...any), requestID string) error {
	if len(s.paths) > 0 {
		print("")
	}
	if s.redis != "" {
		keys, err := s.redisKeys(ctx)
		if err != nil {
			return err
		}
		print("redis     %s, with %d keys of the gateway: redis-cli -p %s", s.redis, keys, s.redis[strings.LastIndex(s.redis, ":")+1:])
	}
	if s.prometheus != "" {
		up, rules, err := s.scraped(ctx)
		if err != nil {
			return err
		}
		print("prometheus %s, scrapes %d targets and evaluates %d rules", s.prometheus, up, rules)
	}
	if s.jaeger != "" {
		trace, spans, err := s.trace(ctx, requestID)
		if err != nil {
			return err
		}
		print("jaeger    %s/trace/%s: the long prompt, %d spans", s.jaeger, trace, spans)
	}
	return nil
}

// redisKeys is how many keys there are, at least one.
func (s *services) redisKeys(ctx context.Context) (keys int64, err error) {
	client := s.redisClient()
	defer func() { _ = client.Close() }()
	err = await(ctx, "keys of the gateway in redis", func() (bool, error) {
		keys, err = client.DBSize(ctx).Result()
		return keys > 0, err
	})
	return keys, err
}

// scraped waits until Prometheus has scraped each of its targets.
func (s *services) scraped(ctx context.Context) (up, rules int, err error) {
	var targets struct {
		Data struct{ ActiveTargets []struct{ Health string } }
	}
	err = await(ctx, "prometheus to scrape all", func() (bool, error) {
		if err := getInto(ctx, s.prometheus+"/api/v1/targets", &targets); err != nil {
			return false, err
		}
		up = 0
		for _, t := range targets.Data.ActiveTargets {
			if t.Health == "up" {
				up++
			}
		}
		return up > 0 && up == len(targets.Data.ActiveTargets), nil
	})
	if err != nil {
		return 0, 0, err
	}
	var groups struct {
		Data struct{ Groups []struct{ Rules []any } }
	}
	if err := getInto(ctx, s.prometheus+"/api/v1/rules", &groups); err != nil {
		return 0, 0, err
	}
	for _, g := range groups.Data.Groups {
		rules += len(g.Rules)
	}
	return up, rules, nil
}

// trace waits for the trace of a request, which comes with its last span.
func (s *services) trace(ctx context.Context, requestID string) (id string, spans int, err error) {
	tags, err := json.Marshal(map[string]string{"tandem.request_id": requestID})
	if err != nil {
		return "", 0, fmt.Errorf("tags of a trace: %w", err)
	}
	find := s.jaeger + "/api/traces?service=tandem&tags=" + url.QueryEscape(string(tags))
	var found struct {
		Data []struct {
			TraceID string
			Spans   []any
		}
	}
	err = await(ctx, "the trace of "+requestID, func() (bool, error) {
		err := getInto(ctx, find, &found)
		return len(found.Data) > 0, err
	})
	if err != nil {
		return "", 0, err
	}
	return found.Data[0].TraceID, len(found.Data[0].Spans), nil
}

// await asks again and again until the answer is yes, an error, or the context ends.
func await(ctx context.Context, what string, done func() (bool, error)) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// getInto decodes the JSON that a URL answers with.
func getInto(ctx context.Context, from string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", from, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", from, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// stop ends all services and removes what they wrote.
func (s *services) stop() error {
	err := process.StopAll(s.running, 10*time.Second)
	for _, log := range s.logs {
		err = errors.Join(err, log.Close())
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}
