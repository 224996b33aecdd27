/* The server: what it stores for one lock, and its scripts. A script is one atomic step.
 *
 * Time has ticks. A lease or a heartbeat is the number of ticks that it still lasts, so runs can be
 * endless although the states are finite. A token names a waiter or holder: 0 .. N-1 are clients,
 * with an inbox each; then D waiters that have died, in inbox N; M stored messages; and for each of
 * these its execution. A comment that begins with @ names the place in django_redislock/lua/ that a
 * step describes; a test checks that it exists.
 */
#define TOKENS (N + D + 2 * M)
#define INBOX(x) ((x) < N -> (x) : N)
#define IS_MESSAGE(x) ((x) >= N + D && (x) < N + D + M)
#define NOBODY 255
#define NO 254
#define LESS(x) x = ((x) > 0 -> (x) - 1 : 0)
#define OLDER(x, most) x = ((x) < most -> (x) + 1 : (x))
#define HALF ((GRANT + 1) / 2)  /* an older heartbeat than that proves nothing about a grant */

byte held[TOKENS];              /* the lease of a holder; 0: it is none */
byte queue[TOKENS], waiters;    /* tokens in order of arrival */
byte alive[N + 1];              /* how long the waiters of an inbox count as alive */
byte epoch[N + 1];              /* how long ago the last heartbeat of an inbox was sent */
bit inbox[N + 1];               /* a grant waits to be read; a later one replaces it */
byte since[N + 1];              /* of this grant: the epoch that it carries */
byte outbox[TOKENS];            /* of a message: ticks until it must be published, plus 1; 0: none */
/* Only for the properties */
byte ahead[TOKENS];             /* bits: the live waiters that came before this one */
bit by_grant[TOKENS];           /* it holds the lock, and has not been heard of since the grant */
byte fence, fence_of[TOKENS], fence_in[N + 1];
hidden byte each, other, place, first, used, reply, advances, served = 1;

inline weigh() {                /* used: the weight of all holders */
  used = 0; for (each : 0 .. TOKENS - 1) { used = used + (held[each] > 0 -> WEIGHT(each) : 0) }
}
#define IS_ROOM(x) (used + WEIGHT(x) <= CAPACITY)
#define IS_LIVE(x) (IS_MESSAGE(x) || alive[INBOX(x)] > 0)
#define IS_SERVED(x) IS_LIVE(x)

inline find(x) {                /* place: its place in the queue, or `waiters` */
  place = 0; do :: place < waiters && queue[place] != x -> place++ :: else -> break od
}
inline forget_waiter(x) {
  ahead[x] = 0; for (each : 0 .. TOKENS - 1) { ahead[each] = ahead[each] & ~(1 << (x)) }
}
inline note_arrival(x) {
  for (each : 0 .. TOKENS - 1) { ahead[x] = ahead[x] | ((each < place && IS_LIVE(queue[each])) -> 1 << queue[each] : 0) }
}

inline add_holder(x, ticks) {   /* @ _holders.lua: local function add_holder(lock, token, request, arrived, expires) */
  assert(held[x] == 0 && ahead[x] == 0);  /* PROPERTY order */
  held[x] = ticks;
  fence = (FENCES -> fence + 1 : 0); fence_of[x] = fence;  /* @ _holders.lua: math.max(now_us, last_fence(lock.index) + 1) */
  weigh(); assert(used <= CAPACITY)  /* PROPERTY capacity */
}
inline leave_queue(x) {         /* @ _queue.lua: if use('ZREM', lock.queue, token) == 0 then return false end */
  find(x); waiters = (place < waiters -> waiters - 1 : waiters);
  do :: place < waiters -> queue[place] = queue[place + 1]; place++ :: else -> break od;
  queue[waiters] = 0; forget_waiter(x)
}
inline push_grant(x) {          /* @ _queue.lua: use('RPUSH', waiter.inbox, grant) */
  inbox[INBOX(x)] = 1; since[INBOX(x)] = epoch[INBOX(x)];
  fence_in[INBOX(x)] = fence_of[x];
  printf("@grant %d\n", x)
}
inline grant_to_waiters(caller) {
  weigh();
  do                            /* @ _queue.lua: while lock.capacity == 0 or lock.used < lock.capacity do */
  :: waiters > 0 && used < CAPACITY ->
    first = queue[0];
    if
    :: first != caller && !IS_SERVED(first) -> leave_queue(first)  /* @ _queue.lua: parse_waiter(record, lock.inboxes, token == caller) */
    :: (first == caller || IS_SERVED(first)) && !IS_ROOM(first) -> break  /* @ _queue.lua: if lock.used + waiter.weight > lock.capacity then break end */
    :: else ->
      if
      :: first == caller -> add_holder(first, LEASE)  /* @ _queue.lua: fence = add_holder(lock, token, waiter, arrived, now + waiter.lease) */
      :: first != caller && IS_MESSAGE(first) -> add_holder(first, QUEUE_LOCK);  /* @ _queue.lua: add_holder(lock, token, message, arrived, now + message.lease) */
        outbox[first] = 1; NOTE_GRANT(first)  /* @ _queue.lua: use('ZADD', outbox_key(lock.inboxes, 'due'), now_ms, token) */
      :: else -> add_holder(first, GRANT); by_grant[first] = 1; push_grant(first)  /* @ _queue.lua: .. add_holder(lock, token, waiter, arrived, now + waiter.grant_ttl) */
      fi;
      leave_queue(first)
    fi;
    weigh()
  :: else -> break
  od
}

/* acquire.lua. reply: it holds the lock. `waits`: it is queued otherwise. A script that hands over
 * sets `advances` to its caller, if that is a waiter, or to NOBODY; advance() follows in its step. */
inline acquire(x, waits, sent) {
  weigh(); find(x); by_grant[x] = 0;
  if
  :: held[x] > 0 -> held[x] = LEASE  /* @ acquire.lua: lock.holder.expires = math.max(lock.holder.expires, full_lease) */
  :: held[x] == 0 && IS_ROOM(x) && waiters == 0 -> note_arrival(x); add_holder(x, LEASE)  /* @ acquire.lua: if is_room and redis.call('EXISTS', queue) == 0 then */
  :: held[x] == 0 && !IS_ROOM(x) && !waits ->  /* @ acquire.lua: if heartbeat == 0 and not is_room then return refuse() end */
    if :: place < waiters -> leave_queue(x); advances = NOBODY :: else fi  /* @ acquire.lua: if leave_queue(lock, token) then grant_to_waiters(lock) end */
  :: else ->
    if :: place == waiters -> note_arrival(x); queue[waiters] = x; waiters++ :: else fi;  /* @ acquire.lua: use('ZADD', queue, 'NX', now_us, token) */
    if :: waits -> alive[INBOX(x)] = ALIVE; epoch[INBOX(x)] = sent :: else fi;  /* @ acquire.lua: redis.call('SET', alive, epoch, 'PX', heartbeat) */
    advances = x                /* @ acquire.lua: local fence = grant_to_waiters(lock, token) */
  fi
}
inline release(x) {             /* release.lua. reply: it held the lock */
  reply = (held[x] > 0); find(x);
  if
  :: reply -> held[x] = 0; by_grant[x] = 0; advances = NOBODY  /* @ release.lua: hand_over(lock) */
  :: !reply && place < waiters -> leave_queue(x); advances = NOBODY  /* @ release.lua: if leave_queue(lock, token) then */
  :: else
  fi
}
inline renew(x) {               /* renew.lua. reply: it holds the lock */
  reply = (held[x] > 0); by_grant[x] = 0;
  held[x] = (reply -> LEASE : 0)  /* @ renew.lua: if mode == 'renew' then holder.expires = math.max(holder.expires, before) end */
}
inline heartbeat(x, sent) {     /* heartbeat.lua. reply: it is in the queue */
  alive[INBOX(x)] = ALIVE; epoch[INBOX(x)] = sent;  /* @ heartbeat.lua: redis.call('SET', alive, epoch, 'PX', heartbeat) */
  find(x); reply = (place < waiters);  /* @ heartbeat.lua: if not arrivals[j] then missing[#missing + 1] = tokens[j] end */
  advances = NOBODY             /* @ heartbeat.lua: if lock.used == 0 then hand_over(lock) else grant_to_waiters(lock) end */
}
inline advance(waits) {
  do
  :: advances != NO -> grant_to_waiters(advances);
    if
    :: advances == NOBODY || waits || held[advances] > 0 -> advances = NO
    :: else -> leave_queue(advances); advances = NOBODY  /* @ acquire.lua: return heartbeat == 0 and refuse() or 0 */
    fi
  :: else -> break
  od;
  used = 0; first = 0
}

#define RARELY (!TRACE || served == 0)  /* mishaps, in random runs */
inline tell() {                 /* TRACE, for random runs: print what the server has */
  if
  :: TRACE -> served = (served + 1) % 4; printf("@reply %d\n", reply);
    for (each : 0 .. TOKENS - 1) {
      if :: held[each] > 0 -> printf("@held %d %d\n", each, held[each]) :: else fi;
      if :: outbox[each] > 0 -> printf("@due %d %d\n", each, outbox[each]) :: else fi;
      if :: each < waiters && (M == 0 || IS_LIVE(queue[each])) -> printf("@queued %d\n", queue[each]) :: else fi
    }
    printf("@done\n")
  :: else
  fi
}

inline server_ticks() {         /* leases expire; so do heartbeats, and with the last one the queue */
  reply = 0;                    /* whether the queue stays */
  for (each : 0 .. N) {
    LESS(alive[each]); reply = (reply || alive[each] > 0);  /* @ _parsing.lua: local epoch = read('GET', inbox .. ':alive') */
    OLDER(epoch[each], HALF); epoch[each] = (alive[each] > 0 -> epoch[each] : 0);
    OLDER(since[each], HALF); since[each] = (inbox[each] -> since[each] : 0)
  }
  for (other : 0 .. TOKENS - 1) {
    LESS(held[other]);          /* @ _holders.lua: local is_live = weight and expires > now */
    by_grant[other] = by_grant[other] && held[other] > 0;
    reply = reply || (other < waiters && IS_MESSAGE(queue[other]));
    if :: !IS_LIVE(other) -> forget_waiter(other) :: else fi
  }
  do :: !reply && waiters > 0 -> waiters--; queue[waiters] = 0 :: else -> break od;  /* @ _outbox.lua: redis.call('PEXPIRE', lock.queue, heartbeat) */
  reply = 0
}
