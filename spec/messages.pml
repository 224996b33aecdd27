/* Stored messages (on_conflict="queue"): tasks that run one after the other, in their order.
 *
 * A sender stores M messages, one after the other; a client uses the same lock; workers run what the
 * broker delivers, and each of them looks after the outbox. Any of them can die after each step
 * (DEATHS in all), and another worker takes the place of a dead one. The broker delivers again what
 * a dead worker had (acks_late), and can lose a message (LOSSES). Holders that live renew.
 *
 * Where nothing is left to do, every stored message must have been sent, and have run, unless the
 * broker lost it. Not shown: that this end comes. It does not if queue locks expire again and again
 * because workers take longer to publish than a queue lock lasts.
 */
#define N 1
#define D 0
#ifndef M
#define M 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#define WORKERS 2
#define CAPACITY 1
#define LEASE 1
#define GRANT 1
#define ALIVE 1
#define QUEUE_LOCK 2
#define DUE 2                   /* ticks after which a taken message is taken again, plus 1 */
#define WEIGHT(x) 1
#define RUN(x) ((x) + M)        /* the token of an execution */
byte hand[WORKERS + 2];         /* the message that somebody publishes; 0: none */
bit current[WORKERS + 2];       /* it was not granted again since it was taken */
#define NOTE_GRANT(x) for (each : 0 .. WORKERS + 1) { current[each] = (hand[each] == x -> 0 : current[each]) }
#include "scripts.pml"

byte copies[TOKENS];            /* messages with the broker */
bit stored[TOKENS], sent[TOKENS], ran[TOKENS], done[TOKENS], dropped[TOKENS];
byte deaths, losses;
mtype = { ended, idle, waiting, holding, publishes, confirms, runs };
mtype state[WORKERS + 2];       /* the workers, the client, the sender */
byte message[WORKERS];          /* that a worker executes; 0: none */
#define CLIENT WORKERS
#define SENDER (WORKERS + 1)
byte next = N;                  /* that the sender stores */

inline store(x) {               /* reply: the lock is its queue lock */
  weigh(); stored[x] = 1;
  reply = (IS_ROOM(x) && waiters == 0);
  place = waiters;
  if
  :: reply -> add_holder(x, QUEUE_LOCK); outbox[x] = DUE  /* @ store.lua: if use('ZSCORE', outbox_key(lock.inboxes, 'due'), token) then */
  :: else -> note_arrival(x); queue[waiters] = x; waiters++  /* @ store.lua: use('ZADD', lock.queue, arrival, token) */
  fi
}
inline queue_again(x) {         /* @ store.lua: if arrival == '0' then arrival = now_us end */
  find(x);
  if
  :: place == waiters ->
    place = 0;
    do :: place < waiters && !(IS_MESSAGE(queue[place]) && queue[place] > x) -> place++ :: else -> break od;
    note_arrival(x);
    for (each : 0 .. TOKENS - 2) { other = TOKENS - 1 - each; if :: other > place -> queue[other] = queue[other - 1] :: else fi }
    queue[place] = x; waiters++
  :: else
  fi;
  advances = NOBODY
}
inline take(p) {
  advances = NOBODY; advance(1);  /* @ outbox.lua: if lock.used == 0 then hand_over(lock) else grant_to_waiters(lock) end */
  hand[p] = 0;
  for (each : 0 .. M - 1) { hand[p] = ((hand[p] == 0 && outbox[N + each] == 1) -> N + each : hand[p]) }
  if :: hand[p] > 0 -> outbox[hand[p]] = DUE; current[p] = 1; state[p] = publishes;  /* @ outbox.lua: local claim = claim_message(inboxes, token, retry) */
    held[hand[p]] = (held[hand[p]] > 0 -> QUEUE_LOCK : 0)  /* @ outbox.lua: math.max(lock.holder.expires, now + message_lease(message)) */
  :: else -> state[p] = (message[p] -> ended : idle) fi
}
inline confirm(p) {
  if :: outbox[hand[p]] > 0 && current[p] -> outbox[hand[p]] = 0 :: else fi;  /* @ sent.lua: if redis.pcall('ZSCORE', outbox_key(inboxes, 'due'), token) ~= claim then return 0 end */
  hand[p] = 0; current[p] = 0
}
#define PUBLISH(p) copies[hand[p]]++; sent[hand[p]] = 1; state[p] = confirms
#define IS_DUE (outbox[N] == 1 || outbox[N + M - 1] == 1 || (M == 3 && outbox[N + 1] == 1))
#define IS_HELD (held[0] || held[1] || held[2] || held[3] || held[4] || (M == 3 && (held[5] || held[6])))

proctype Worker(byte p) {
end:
  do
  :: d_step { state[p] == idle && (IS_DUE || (!IS_HELD && waiters > 0)) -> take(p) }
  :: d_step { state[p] == publishes -> PUBLISH(p) }
  :: d_step { state[p] == confirms -> confirm(p); state[p] = (message[p] > 0 -> ended : idle) }
  :: d_step { state[p] == idle && (copies[N] > 0 || copies[N + M - 1] > 0 || (M == 3 && copies[N + 1] > 0)) ->
      first = (copies[N] > 0 -> N : (copies[N + 1] > 0 -> N + 1 : N + M - 1));
      message[p] = first; copies[first]--; other = first; advances = NO;
      if
      :: done[other] -> message[p] = 0  /* it has succeeded */
      :: !done[other] && held[other] > 0 ->  /* @ acquire.lua: if its_weight == request.weight and its_lease > 0 then */
        held[other] = 0; outbox[other] = 0; add_holder(RUN(other), LEASE); state[p] = runs
      :: !done[other] && held[other] == 0 ->
        weigh();
        if
        :: used == 0 && waiters == 0 -> add_holder(RUN(other), LEASE); state[p] = runs
        :: else -> queue_again(message[p]); advance(1); message[p] = 0
        fi
      fi;
      assert(state[p] != runs || state[1 - p] != runs) }  /* PROPERTY exclusion */
  :: d_step { state[p] == runs -> advances = NO; ran[message[p]] = 1; release(RUN(message[p])); advance(1); state[p] = publishes; take(p) }
  :: d_step { state[p] == ended -> done[message[p]] = 1; message[p] = 0; state[p] = idle; first = 0 }
  :: d_step { deaths < DEATHS && state[p] != idle ->
      deaths++; state[p] = idle; hand[p] = 0; current[p] = 0;
      if :: message[p] > 0 -> copies[message[p]]++; message[p] = 0 :: else fi }
  od
}

proctype Others() {
end:
  do
  /* The sender */
  :: d_step { state[SENDER] == idle && next < N + M -> store(next); next++;
      if :: reply -> hand[SENDER] = next - 1; current[SENDER] = 1; state[SENDER] = publishes :: else fi }
  :: d_step { state[SENDER] == publishes -> PUBLISH(SENDER) }
  :: d_step { state[SENDER] == confirms -> confirm(SENDER); state[SENDER] = idle }
  :: d_step { state[SENDER] != ended && deaths < DEATHS -> deaths++; state[SENDER] = ended; hand[SENDER] = 0; current[SENDER] = 0 }
  /* The client, which asks once */
  :: d_step { state[CLIENT] == idle || (state[CLIENT] == waiting && inbox[0]) ->
      advances = NO; inbox[0] = 0; since[0] = 0; acquire(0, 1, 0); advance(1);
      state[CLIENT] = (held[0] > 0 -> holding : waiting) }
  :: d_step { state[CLIENT] == holding -> advances = NO; release(0); advance(1); state[CLIENT] = ended }
  :: d_step { state[CLIENT] != ended && deaths < DEATHS -> deaths++; state[CLIENT] = ended; inbox[0] = 0; since[0] = 0 }
  od
}

/* A lease counts down if nobody renews it. The queue lock of a message lasts while it is with the
 * broker: the timeout is longer. That it is not counts as a loss. */
#define COUNTS(x) ((held[x] > 0 && copies[x] == 0) || outbox[x] > 1 || \
  (held[RUN(x)] > 0 && message[0] != (x) && message[1] != (x)))
#define SOMETHING_COUNTS (COUNTS(N) || COUNTS(N + M - 1) || (M == 3 && COUNTS(N + 1)) || \
  (held[0] > 0 && state[CLIENT] != holding))
proctype Clock() {
end:
  do
  :: d_step { SOMETHING_COUNTS && !(state[CLIENT] == waiting && inbox[0]) ->
      for (first : N .. N + M - 1) {
        if :: held[first] > 0 && copies[first] > 0 -> held[first]++ :: else fi;
        if :: held[RUN(first)] > 0 && (message[0] == first || message[1] == first) -> held[RUN(first)]++ :: else fi;
        if :: outbox[first] > 1 -> outbox[first]-- :: else fi
      }
      if :: state[CLIENT] == holding -> held[0]++ :: else fi;
      if :: state[CLIENT] == waiting -> alive[0] = ALIVE + 1 :: else fi;
      first = 0; server_ticks() }
  :: d_step { losses < LOSSES && copies[N] > 0 -> losses++; copies[N]--; dropped[N] = 1 }
  :: d_step { losses < LOSSES && copies[N] > 0 && held[N] > 0 -> losses++; held[N] = 0 }
  od
}

proctype Judge() {
  timeout;
  d_step {
    for (first : N .. N + M - 1) { assert(!stored[first] || sent[first]) }  /* PROPERTY sent */
    for (first : N .. N + M - 1) {
      assert(!stored[first] || done[first] || dropped[first]);  /* PROPERTY run */
      assert(held[first] == 0 && outbox[first] == 0 && waiters == 0)  /* PROPERTY end */
    }
    first = 0
  }
end: false
}

init {
  d_step { for (first : 0 .. WORKERS + 1) { state[first] = idle } first = 0 }
  atomic { run Worker(0); run Worker(1); run Others(); run Clock(); run Judge() }
}
