"""What those who raced for a lock were told, holders and operators, beside what is true of it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .checker import History, Hold, overlaps
from .events import Event


class Race:
    """The history of one lock that only its holders and operators ended: no lease ran out.

    Each try of an operator is an event ``forced`` (`asked`: when it began; `aimed`: the token of
    the one who was meant, None for whoever holds; `tokens`: of whom it released; `told`: whether
    the operator read that it did). Holders note ``extended`` (`token`, `asked`). `ends` is how
    and when each holding ended, by its fencing token, as Redis noted it down.
    """

    def __init__(self, events: Sequence[Event], ends: Mapping[int, tuple[str, float]]) -> None:
        self.holds = History(events).holds
        self.tries = [each for each in events if each["what"] == "forced"]
        self.extensions = [each for each in events if each["what"] == "extended"]
        self.ends = ends

    def forced(self) -> Iterator[tuple[Hold, float]]:
        """Who was forced, and when: it may be before it knew that it held."""
        for hold in self.holds:
            how, when = self.ends.get(hold.fence, ("", 0))
            if how == "forced":
                yield hold, when

    def begun_anew(self) -> Iterator[Hold]:
        """Who was forced in a turn of which it never knew, and then stood last again."""
        forced = {hold.fence for hold, _ in self.forced()}
        for hold in self.holds:
            if len(self._tries_at(hold.token)) > (hold.fence in forced):
                yield hold

    def falsehoods(self) -> Iterator[str]:
        yield from self._false_sum()
        for each in self.tries:
            yield from self._false_to_operator(each)
        for hold in self.holds:
            yield from self._false_to_holder(hold)
        for each in self.extensions:
            yield from self._false_extension(each)

    def overlaps(self) -> Iterator[str]:
        """Of those who were not forced: who was may not know it yet."""
        for hold, t in self.forced():
            hold.ended, hold.looked = min(hold.ended, t), min(hold.looked, t)
        return overlaps(self.holds)

    def _false_sum(self) -> Iterator[str]:
        """What is forced to end is ended by exactly one."""
        told = sum(len(each["tokens"]) for each in self.tries)
        true = Counter(how for how, _ in self.ends.values())["forced"]
        if told != true:
            yield f"operators were told that they ended {told} holdings, and ended {true}"

    def _false_to_operator(self, one: Event) -> Iterator[str]:
        if one["told"] != bool(one["tokens"]):
            yield f"what it read is not what happened: {one}"
        if one["aimed"] and {*one["tokens"], one["aimed"]} != {one["aimed"]}:
            yield f"another than was meant was released: {one}"
        if one["aimed"] and not one["tokens"] and not self._ends_before(one["aimed"], one["t"]):
            yield f"told that it is not held, and nobody had ended it: {one}"

    def _false_to_holder(self, hold: Hold) -> Iterator[str]:
        told = "released" if hold.lost is None else "forced"
        true, _ = self.ends.get(hold.fence, ("nothing", 0))
        if told != true:
            yield f"{hold} was told that it was {told}, and it was {true}"

    def _false_extension(self, one: Event) -> Iterator[str]:
        [hold] = [each for each in self.holds if each.token == one["token"]]
        forced = [each["t"] for each in self._tries_at(hold.token)]
        if any(hold.began < t < one["asked"] for t in forced):
            yield f"extended after it was forced: {one}"

    def _ends_before(self, token: str, t: float) -> bool:
        """Whether somebody, holder or operator, had at least begun to end it."""
        ends = [hold.ended for hold in self.holds if hold.token == token]
        return min([*ends, *(each["asked"] for each in self._tries_at(token)), t]) < t

    def _tries_at(self, token: str) -> list[Event]:
        return [each for each in self.tries if token in each["tokens"]]
