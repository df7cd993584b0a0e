package pools

import (
	"context"
	"time"
)

// Prepare begins to make the server able to take a request for the model: it is woken
// if it sleeps, and an adapter of the directory is loaded if it lacks it. It stays awake,
// and the adapter stays, until the lease is released. What is returned waits for that;
// nil if the server is ready.
func (l *Lease) Prepare(model string) (await func(context.Context) error) {
	s := l.server
	if s.GPUs != "" && !s.gpus.Enter() {
		s.wakeRequests.Ask() // requests that wait ask again
		return func(ctx context.Context) error {
			if err := l.enter(ctx); err != nil {
				return err
			}
			l.pauseBacklog(time.Now())
			if load := l.loadAdapter(model); load != nil {
				return load(ctx)
			}
			return nil
		}
	}
	l.entered = s.GPUs != ""
	return l.loadAdapter(model)
}

// enter waits until the server is awake and counts on it.
func (l *Lease) enter(ctx context.Context) error {
	s := l.server
	for !s.gpus.Enter() {
		awake, err := s.wakeRequests.take()
		if err != nil {
			return err
		}
		select {
		case <-awake.done:
			if awake.err != nil {
				return awake.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	l.entered = true
	return nil
}

// loadAdapter is the part of Prepare that is about adapters.
func (l *Lease) loadAdapter(model string) (await func(context.Context) error) {
	s := l.server
	if _, onDemand := s.fleet.cfg.Adapters.Find(model); !onDemand {
		return nil
	}
	loaded, err := s.loadRequests.take(model, s.health.Load().Serves(model), time.Now())
	l.adapter = model
	if loaded == nil && err == nil {
		s.fleet.adapterUse.hits.Add(1)
		return nil
	}
	s.fleet.adapterUse.misses.Add(1)
	return func(ctx context.Context) error {
		if err != nil {
			return err
		}
		select {
		case <-loaded.done:
			l.pauseBacklog(time.Now())
			return loaded.err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pauseBacklog records in the server's backlog that it was made ready until now.
func (l *Lease) pauseBacklog(now time.Time) {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	l.server.work[LegIndex(l.leg)].Pause(now)
}
