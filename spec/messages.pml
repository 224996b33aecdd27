/* Stored messages (on_conflict="queue"): tasks that run one after the other, in their order.
 *
 * A sender stores M messages; a client uses the same lock; workers run what the broker delivers, and
 * each of them looks after the outbox. Any of them can die after each step, and another worker takes
 * the place of a dead one. The broker delivers again what a dead worker had (acks_late), and can lose
 * a message. Holders that live renew. Where nothing is left to do, every stored message must have
 * been sent, and have run, unless the broker lost it.
 */
#define WORKERS 2
#define CLIENT WORKERS
#define SENDER (WORKERS + 1)
#define DUE 2                   /* ticks after which a taken message is taken again, plus 1 */
#define WEIGHT(x) 1
#define RUN(x) ((x) + M)        /* the token of an execution */
byte hand[WORKERS + 2];         /* the message that somebody publishes; 0: none */
bit current[WORKERS + 2];       /* its claim is not over */
#define NOTE_GRANT(x) for (each : 0 .. WORKERS + 1) { current[each] = (hand[each] == x -> 0 : current[each]) }
#include "scripts.pml"

byte copies[TOKENS];            /* of a message, with the broker. More than two count as two */
bit stored[TOKENS], sent[TOKENS], done[TOKENS], dropped[TOKENS];
byte deaths, losses;
#define MAY_DIE (deaths < DEATHS && RARELY)
mtype = { ended, idle, waiting, holding, takes, publishes, confirms, runs };
mtype state[WORKERS + 2];
byte message[WORKERS + 2];      /* that a worker executes; 0: none */
byte next = N;                  /* that the sender stores */
byte seat;                      /* of the client in the order of arrival: so many messages and tokens came before it */
hidden byte begun, its;
#define CAME_BEFORE(y, x) (IS_MESSAGE(y) -> (y) < (x) : seat <= (x))
#define HAS_MESSAGE (waiters > 1 || (waiters == 1 && IS_MESSAGE(queue[0])))
#define HAS_COPY (copies[N] || copies[N + M - 1] || (M == 3 && copies[N + 1]))
#define IS_DUE (outbox[N] == 1 || outbox[N + M - 1] == 1 || (M == 3 && outbox[N + 1] == 1))
#define IS_HELD (held[0] || held[1] || held[2] || held[3] || held[4] || (M == 3 && (held[5] || held[6])))
#define SCRIPT(call) advances = NO; call; begun = reply; advance(1); reply = begun

inline claim(p, x) {            /* this caller publishes it, unless it takes too long */
  NOTE_GRANT(x);                /* the claims of others are over */
  outbox[x] = DUE; hand[p] = x; current[p] = 1; state[p] = publishes
}
inline store(p, x) {            /* store.lua. reply: the lock is its queue lock, and the caller publishes it */
  printf("@store %d %d\n", x, p);
  stored[x] = 1; advances = NO; find(x);
  if
  :: place == waiters && held[x] == 0 ->
    outbox[x] = 0; NOTE_GRANT(x);  /* @ store.lua: use('ZREM', outbox_key(lock.inboxes, 'due'), token) */
    place = 0; do :: place < waiters && CAME_BEFORE(queue[place], x) -> place++ :: else -> break od;
    note_arrival(x);
    for (each : 0 .. TOKENS - 2) { other = TOKENS - 1 - each; if :: other > place -> queue[other] = queue[other - 1] :: else fi }
    queue[place] = x; waiters++; advances = NOBODY  /* @ store.lua: use('ZADD', lock.queue, arrival, token) */
  :: else
  fi;
  advance(1); reply = (held[x] > 0);
  if :: reply -> claim(p, x) :: else fi;  /* @ store.lua: if use('ZSCORE', outbox_key(lock.inboxes, 'due'), token) then */
  tell()
}
inline take(p) {                /* outbox.lua. reply: a message has to be published */
  printf("@take %d %d\n", p, p);
  advances = (HAS_MESSAGE -> NOBODY : NO); advance(1);  /* @ outbox.lua: if lock.used == 0 then hand_over(lock) else grant_to_waiters(lock) end */
  its = 0; for (each : 0 .. M - 1) { its = (its == 0 && outbox[N + each] == 1 -> N + each : its) }
  reply = (its > 0); state[p] = (message[p] -> ended : idle);
  if :: reply -> printf("@taken %d\n", its); claim(p, its);  /* @ outbox.lua: local claim = claim_message(inboxes, token, retry) */
    held[its] = (held[its] > 0 -> QUEUE_LOCK : 0)  /* @ outbox.lua: math.max(lock.holder.expires, now + message_lease(message)) */
  :: else fi;
  tell()
}
inline confirm(p) {             /* sent.lua. reply: the message leaves the outbox */
  printf("@confirm %d %d\n", hand[p], p);
  reply = current[p];           /* @ sent.lua: if redis.pcall('ZSCORE', outbox_key(inboxes, 'due'), token) ~= claim then return 0 end */
  outbox[hand[p]] = (reply -> 0 : outbox[hand[p]]);
  hand[p] = 0; current[p] = 0;
  tell(); state[p] = (message[p] -> ended : idle)
}
inline execute(p, x) {          /* acquire.lua, with the token of the execution */
  printf("@run %d %d\n", x, p); advances = NO;
  if
  :: held[x] > 0 -> held[x] = 0; add_holder(RUN(x), LEASE)  /* @ acquire.lua: if its_weight == request.weight and its_lease > 0 then */
  :: else -> acquire(RUN(x), 0, 0); advance(0)
  fi;
  reply = (held[RUN(x)] > 0); tell()
}
#define PUBLISHES(p) \
  :: d_step { state[p] == publishes -> copies[hand[p]] = (copies[hand[p]] < 2 -> copies[hand[p]] + 1 : 2); sent[hand[p]] = 1; state[p] = confirms } \
  :: d_step { state[p] == confirms -> confirm(p) }

proctype Worker(byte p) {
end:
  do
  :: d_step { (state[p] == idle && (IS_DUE || (!IS_HELD && HAS_MESSAGE))) || state[p] == takes -> take(p) }
  PUBLISHES(p)
  :: d_step { state[p] == idle && HAS_COPY ->  /* the broker delivers a message */
      its = (copies[N] > 0 -> N : (copies[N + 1] > 0 -> N + 1 : N + M - 1));
      copies[its]--; reply = 0;
      if :: !done[its] && held[RUN(its)] == 0 -> execute(p, its) :: else fi;  /* else it has succeeded, or a copy of it runs */
      if
      :: reply -> message[p] = its; state[p] = runs
      :: !reply && !done[its] -> store(p, its)
      :: else
      fi;
      assert(state[p] != runs || state[1 - p] != runs) }  /* PROPERTY exclusion */
  :: d_step { state[p] == runs -> printf("@free %d %d\n", RUN(message[p]), p); SCRIPT(release(RUN(message[p]))); tell(); state[p] = takes }
  :: d_step { state[p] == ended -> done[message[p]] = 1; message[p] = 0; state[p] = idle }
  :: d_step { MAY_DIE && state[p] != idle ->
      deaths++; state[p] = idle; hand[p] = 0; current[p] = 0;
      if :: message[p] > 0 -> copies[message[p]]++; message[p] = 0 :: else fi }
  od
}

proctype Others() {
end:
  do
  /* The sender */
  :: d_step { state[SENDER] == idle && next < N + M -> next++; store(SENDER, next - 1) }
  PUBLISHES(SENDER)
  :: d_step { state[SENDER] != ended && MAY_DIE -> deaths++; state[SENDER] = ended; hand[SENDER] = 0; current[SENDER] = 0 }
  /* The client. While it waits, its heartbeats are in time */
  :: d_step { state[CLIENT] == idle || (state[CLIENT] == waiting && inbox[0]) ->
      printf("@ask 0 0\n"); seat = (state[CLIENT] == idle -> next : seat);
      inbox[0] = 0; since[0] = 0; SCRIPT(acquire(0, 1, 0));
      reply = (held[0] > 0); tell(); state[CLIENT] = (reply -> holding : waiting) }
  :: d_step { state[CLIENT] == waiting && !inbox[0] && !IS_HELD -> printf("@beat 0 0\n"); SCRIPT(heartbeat(0, 0)); tell() }
  :: d_step { state[CLIENT] == holding -> printf("@free 0 0\n"); SCRIPT(release(0)); tell(); state[CLIENT] = ended; seat = 0 }
  :: d_step { state[CLIENT] != ended && MAY_DIE -> deaths++; state[CLIENT] = ended; inbox[0] = 0; since[0] = 0 }
  od
}

/* A lease counts down if nobody renews it. The queue lock of a message lasts while it is with the
 * broker: the timeout is longer. That it is not counts as a loss. */
#define RUNS(x) (message[0] == (x) || message[1] == (x))
#define COUNTS(x) ((held[x] > 0 && copies[x] == 0) || outbox[x] > 1 || (held[RUN(x)] > 0 && !RUNS(x)))
#define SOMETHING_COUNTS (COUNTS(N) || COUNTS(N + M - 1) || (M == 3 && COUNTS(N + 1)) || \
  (held[0] > 0 && state[CLIENT] != holding) || (alive[0] > 0 && state[CLIENT] == ended))
#define KEEP_IF(is, x) if :: is -> printf("@keep %d\n", x); held[x]++ :: else fi
proctype Clock() {
end:
  do
  :: d_step { SOMETHING_COUNTS && !(state[CLIENT] == waiting && (inbox[0] || !IS_HELD)) ->
      for (first : N .. N + M - 1) {
        KEEP_IF(held[first] > 0 && copies[first] > 0, first);
        KEEP_IF(held[RUN(first)] > 0 && RUNS(first), RUN(first));
        if :: outbox[first] > 1 -> outbox[first]-- :: else fi
      }
      KEEP_IF(state[CLIENT] == holding, 0);
      if :: state[CLIENT] == waiting -> printf("@alive 0\n"); alive[0] = ALIVE + 1 :: else fi;
      first = 0; server_ticks(); printf("@tick 0 0\n"); tell() }
  :: d_step { losses < LOSSES && copies[N] > 0 -> losses++; copies[N]--; dropped[N] = 1 }
  :: d_step { losses < LOSSES && copies[N] > 0 && held[N] > 0 && !TRACE -> losses++; held[N] = 0 }
  od
}

proctype Judge() {
  timeout;
  d_step {
    for (first : N .. N + M - 1) { assert(!stored[first] || sent[first]) }  /* PROPERTY sent */
    for (first : N .. N + M - 1) {
      assert(!stored[first] || done[first] || dropped[first]);                 /* PROPERTY run */
      assert(held[first] == 0 && outbox[first] == 0 && waiters == 0)           /* PROPERTY end */
    }
    first = 0
  }
end: false
}

init {
  d_step { for (first : 0 .. WORKERS + 1) { state[first] = idle } first = 0 }
  atomic { run Worker(0); run Worker(1); run Others(); run Clock(); run Judge() }
}
