"""OpenTelemetry spans for the waits and holds of locks. Import it in `AppConfig.ready()`."""

from weakref import WeakKeyDictionary

from opentelemetry import trace

from django_redislock import signals

tracer = trace.get_tracer("django_redislock")
spans = WeakKeyDictionary()


def begin(what, acquisition, name, kind, using, **more):
    attributes = {"lock.name": name, "lock.kind": kind, "lock.using": using, **more}
    spans[acquisition] = tracer.start_span(what, attributes=attributes)


def waiting(acquisition, name, kind, using, **about):
    begin("wait for lock", acquisition, name, kind, using)


def acquired(acquisition, name, kind, using, fence_token, **about):
    end(acquisition)
    fence = {} if fence_token is None else {"lock.fence_token": fence_token}
    begin("hold lock", acquisition, name, kind, using, **fence)


def failed(acquisition, error, **about):
    if span := spans.get(acquisition):
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR)
    end(acquisition)


def lost(acquisition, **about):
    if acquisition and (span := spans.get(acquisition)):
        span.add_event("lock lost")
        span.set_status(trace.StatusCode.ERROR, "the lock was lost while it was held")


def end(acquisition, **about):
    if span := spans.pop(acquisition, None):
        span.end()


signals.lock_waiting.connect(waiting)
signals.lock_acquired.connect(acquired)
signals.lock_refused.connect(end)
signals.lock_failed.connect(failed)
signals.lock_lost.connect(lost)
signals.lock_released.connect(end)
