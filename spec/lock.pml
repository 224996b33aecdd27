/* Clients that use one lock, the network, and the clock. See scripts.pml for the server.
 *
 * No step has to be taken before the next tick: this is how paused processes and slow networks are
 * modelled. Any number of requests, replies and grants can be lost, one request at a time can
 * arrive late, clients can die at any time, and the server can lose its data (WIPES). A lost reply
 * is also how a client appears that is cancelled, or whose time is over.
 *
 * A client uses its token again when no trace of its last use is left. A reply arrives in the step
 * in which the script runs. A later arrival would shorten what the client believes, and otherwise
 * equals a client that is paused, or a reply that is lost.
 *
 * PROMPT is the other view: live clients act before the next tick, and few requests are lost.
 * Then a free lock must be acquired in time.
 */
#ifndef N
#define N 2                     /* clients */
#endif
#ifndef D
#define D 0                     /* waiters that have died, in the queue from the beginning */
#endif
#define M 0
#ifndef CAPACITY
#define CAPACITY 1
#endif
#ifndef LEASE                   /* in ticks. The defaults are 30 s, 2 s and 1.75 s */
#define LEASE 4
#define GRANT 3
#define ALIVE 2
#endif
#define QUEUE_LOCK LEASE
#define WEIGHT(x) ((CAPACITY > 1 && (x) == 0) -> 2 : 1)
#define NOTE_GRANT(x) skip
#include "scripts.pml"

mtype = { none, ask, last_ask, free, renewal, beat };
mtype asks[N];                  /* the request of a client that is under way */
byte age[N];                    /* how long ago it was sent */
mtype late = none;              /* a request whose sender does not wait for the reply any more */
byte late_from, late_age;

mtype = { idle, asking, waiting, holding, freeing, dead };
mtype state[N];
byte until[N];                  /* how long the client counts on the lock, by its own clock */
#define BELIEVES(p) (state[p] == holding && until[p] > 0)

byte untold;                    /* after a loss of data: how long nothing is promised */
byte lost, deaths, idle_ticks, renewals[N];  /* PROMPT */
bit beaten[N];
#ifdef FENCES
byte told_fence, told_to;
#endif
hidden mtype what;
hidden byte sum, begun, sent_ago;

#ifdef PROMPT
#define MAY_LOSE (lost < PROMPT)
#define NOTE_LOSS lost++
#define MAY_DIE(p) (deaths < DEATHS)
#define MAY_TICK(p) (state[p] == dead || (asks[p] == none && state[p] != asking && state[p] != freeing \
  && !(state[p] == waiting && (inbox[p] || !beaten[p])) && !(state[p] == holding && until[p] <= 1)))
#else
#define NOTE_LOSS skip
#define MAY_DIE(p) true
#define MAY_TICK(p) (!TRACE || asks[p] == none)
#ifdef CALM
#define MAY_LOSE false
#define MAY_BE_LATE false
#else
#define MAY_LOSE true
#define MAY_BE_LATE (late == none)
#endif
#endif

inline send(p, request) { asks[p] = request; age[p] = 0 }

inline believe(p, ticks) {
  state[p] = holding; until[p] = ticks; sum = 0;
  for (each : 0 .. N - 1) { sum = sum + (BELIEVES(each) -> WEIGHT(each) : 0) }
  assert(untold > 0 || sum <= CAPACITY)  /* PROPERTY exclusion */
}
inline learn_fence(p, its) {
#ifdef FENCES
  assert(its > told_fence || (its == told_fence && told_to == p));  /* PROPERTY fence */
  told_fence = its; told_to = p
#else
  skip
#endif
}
#ifdef FENCES
#define FENCE_OF(p) fence_of[p]
#define FENCE_IN(p) fence_in[p]
#define MAY_SERVE (fence < FENCES)
#else
#define FENCE_OF(p) 0
#define FENCE_IN(p) 0
#define MAY_SERVE true
#endif

inline check_holds() {          /* the server keeps the lock for every client that counts on it */
  for (each : 0 .. N - 1) { assert(untold > 0 || !BELIEVES(each) || held[each] >= until[each]) }  /* PROPERTY hold */
}

inline serve(p, request, sent) {
  printf("@%e %d 0\n", request, p);
  advances = NO; sent_ago = (sent < HALF -> sent : HALF);
  if
  :: request == ask || request == last_ask -> acquire(p, (request == ask), sent_ago)
  :: request == free -> release(p)
  :: request == renewal -> renew(p)
  :: request == beat -> heartbeat(p, sent_ago)
  fi;
  advance((request == ask));
  if :: request == ask || request == last_ask -> reply = (held[p] > 0) :: else fi;
  begun = reply;
  tell();
  check_holds()
}

inline no_reply(p) {            /* the client of a request learns nothing of it */
  asks[p] = none; age[p] = 0
}

proctype Client(byte p) {
  do
  :: d_step { state[p] == idle -> begun = 0; find(p);
      if
      :: held[p] == 0 && place == waiters && !inbox[p] && (late == none || late_from != p) ->
        state[p] = asking; send(p, ask)
      :: else
      fi }
  :: d_step { asks[p] == ask && state[p] == asking && age[p] == 0 && RARELY -> asks[p] = last_ask } /* does not wait */
  /* The script runs, and the reply arrives */
  :: d_step { asks[p] != none && MAY_SERVE ->
      what = asks[p]; serve(p, what, age[p]); asks[p] = none;
      if
      :: (what == ask || what == last_ask) && begun && age[p] < LEASE ->  /* @ ../engine/protocol.py: return Acquired(abs(reply), sent_at + request.lease, took_over=took_over) */
        learn_fence(p, FENCE_OF(p)); believe(p, LEASE - age[p])
      :: what == ask && begun && age[p] >= LEASE -> send(p, ask)  /* @ ../engine/protocol.py: if acquired and clock.now() < acquired.deadline:  # else the reply came too late */
      :: what == last_ask && begun && age[p] >= LEASE -> state[p] = freeing; send(p, free)
      :: what == ask && !begun -> state[p] = waiting
      :: what == last_ask && !begun -> state[p] = idle
      :: what == renewal && begun -> believe(p, (LEASE > age[p] -> LEASE - age[p] : 0))
      :: what == renewal && !begun -> until[p] = 0; state[p] = freeing; send(p, free)
      :: what == beat && !begun -> state[p] = asking; send(p, ask)  /* asks again */
      :: what == beat && begun
      :: what == free -> state[p] = idle
      fi;
      age[p] = (asks[p] == none -> 0 : age[p]) }
  /* The reply is lost; or the request; or the request arrives later */
  :: d_step { asks[p] != none && RARELY && MAY_LOSE && MAY_SERVE -> what = asks[p]; serve(p, what, age[p]); no_reply(p); NOTE_LOSS }
  :: d_step { asks[p] != none && RARELY && MAY_LOSE -> no_reply(p); NOTE_LOSS }
#ifndef PROMPT
  :: d_step { asks[p] != none && RARELY && MAY_BE_LATE ->
      late = asks[p]; late_from = p; late_age = (age[p] < HALF -> age[p] : HALF); no_reply(p) }
  :: d_step { state[p] == freeing && asks[p] == none -> state[p] = idle }  /* the server is away */
  :: d_step { inbox[p] && RARELY -> inbox[p] = 0; since[p] = 0 }  /* a grant is lost */
#endif
#if !defined(PROMPT) || TRACE
  :: d_step { state[p] == waiting && asks[p] == none && (!TRACE || beaten[p]) -> state[p] = asking; send(p, ask) }
#endif
  :: d_step { state[p] == asking && asks[p] == none -> send(p, ask) }  /* after an error */
  :: d_step { (((state[p] == asking || state[p] == waiting) && RARELY) || state[p] == freeing) && asks[p] == none ->
      state[p] = freeing; send(p, free) }
  :: d_step { inbox[p] && state[p] == idle -> inbox[p] = 0; since[p] = 0 }  /* for a waiter that has gone */
  /* Waiting */
  :: d_step { state[p] == waiting && asks[p] == none && inbox[p] ->
      inbox[p] = 0;
      if                        /* @ ../engine/protocol.py: if not 0 <= clock.now() - grant.since < request.grant_ttl / 2: */
      :: 2 * since[p] < GRANT -> learn_fence(p, FENCE_IN(p)); believe(p, GRANT - since[p])
      :: else -> state[p] = asking; send(p, ask)
      fi;
      since[p] = 0 }
  :: d_step { state[p] == waiting && asks[p] == none && !beaten[p] -> send(p, beat);
#ifdef PROMPT
      beaten[p] = 1
#endif
    }
  /* Holding */
  :: d_step { BELIEVES(p) && asks[p] == none && (renewals[p] == 0) -> send(p, renewal);
#ifdef PROMPT
      renewals[p] = 1
#endif
    }
  :: d_step { state[p] == holding && asks[p] == none -> until[p] = 0; renewals[p] = 0; state[p] = freeing; send(p, free) }
  /* Death */
  :: d_step { state[p] != idle && state[p] != dead && asks[p] == none && RARELY && MAY_DIE(p) ->
      until[p] = 0; renewals[p] = 0;
#ifdef PROMPT
      deaths++; state[p] = dead
#else
      state[p] = idle           /* another one comes in its place */
#endif
    }
#ifndef PROMPT
  :: d_step { late != none && late_from == p && MAY_SERVE -> what = late; late = none; serve(p, what, late_age); late_age = 0; late_from = 0 }
  :: d_step { late != none && late_from == p -> late = none; late_age = 0; late_from = 0 }
#endif
  od
}

proctype Clock() {
  do
  :: d_step { MAY_TICK(0) && MAY_TICK(1) && (N < 3 || MAY_TICK(N - 1)) ->
      begun = 0; sum = 0; what = none;
      for (each : 0 .. N - 1) {
        begun = begun || state[each] == asking || state[each] == waiting;
        sum = sum || BELIEVES(each) || (state[each] == dead && held[each] > 0 && !by_grant[each])
      }
#ifdef PROMPT
      idle_ticks = (begun && !sum -> idle_ticks + 1 : 0);
      assert(TRACE || idle_ticks <= (1 + DEATHS) * (GRANT + 1));  /* PROPERTY progress */
#endif
      for (each : 0 .. N - 1) {
        LESS(until[each]); beaten[each] = 0;
        if :: asks[each] != none && asks[each] != free -> OLDER(age[each], (asks[each] == beat -> HALF : LEASE)) :: else fi
      }
      if :: late == ask || late == beat -> OLDER(late_age, HALF) :: else fi;
      LESS(untold);
      server_ticks(); printf("@tick 0 0\n"); tell() }
#ifdef WIPES
  :: d_step { untold = LEASE;
      for (each : 0 .. TOKENS - 1) { held[each] = 0; queue[each] = 0; ahead[each] = 0; by_grant[each] = 0 }
      for (each : 0 .. N) { alive[each] = 0; epoch[each] = 0 }
      waiters = 0 }
#endif
  od
}

init {
  d_step {
    for (each : 0 .. N - 1) { asks[each] = none; state[each] = idle }
#if D > 0
    alive[N] = ALIVE;
    for (each : N .. N + D - 1) { queue[waiters] = each; waiters++; ahead[each] = (1 << each) - (1 << N) }
#endif
  }
  atomic { for (first : 0 .. N - 1) { run Client(first) } run Clock() }
}
