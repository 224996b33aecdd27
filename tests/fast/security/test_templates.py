"""Names that are made from arguments of a call, and patterns of names. Strangers choose both."""

import re
from inspect import signature

from django.core.exceptions import ImproperlyConfigured
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_redislock import locks
from django_redislock.names import MAX_NAME_BYTES, Template, check_name
from django_redislock.text import any_of
from tests.stalls import seconds_in_scripts

from .forging import key_of, texts


def rebuild(site, width=None): ...


REBUILD = signature(rebuild)

HIDDEN = "nobody may read this"


class Spied:
    """Records the names of its attributes that are accessed."""

    def __init__(self):
        self.__dict__ |= {"asked": [], "_secret": HIDDEN}

    def __getattribute__(self, name):
        if name not in ("asked", "__class__", "__dict__"):
            self.asked.append(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        return self

    def __getitem__(self, key):
        return self

    def __repr__(self):
        return "spied"

    def __format__(self, spec):
        return "1"


ACCESSORS = [".a", "[a]", "[0]", "[]", "._secret", ".__class__", "[__class__]", ".a.__init__"]
ACCESSORS += ["[", "]", ".", "[.__class__", "]._secret", "[a]b", "[a].__globals__[HIDDEN]"]

fields = st.tuples(
    st.sampled_from(["{site", "{width", "{{site", "{0", "{", "{self"]),
    st.lists(st.sampled_from(ACCESSORS), max_size=3).map("".join),
    st.sampled_from(["", "!r", "!s", "!a", "!x"]),
    st.sampled_from(["", ":>4", ":{width}", ":{width._secret}", ":{site.__class__}", ":{"]),
    st.sampled_from(["}", "}}", "", "}x"]),
).map("".join)


@given(fields | st.lists(fields, max_size=3).map("".join))
@example("{site.a[a].a!s:{width}}")
@example("{site.__class__}")
@example("{site.a.__init__.__globals__[HIDDEN]}")
@example("{site:{width.__class__}}")
@example("{site!r:{site._secret}}")
@example("{site.a[}.__class__]._secret}")
def test_a_template_cannot_access_private_attributes(text):
    spied = Spied()
    try:
        name = Template(text, REBUILD).of_call((spied, spied), {})
    except (ImproperlyConfigured, ValueError):
        return
    assert not [each for each in spied.asked if each.startswith("_") and each != "__format__"]
    assert HIDDEN not in name
    assert __name__ not in name, "its class was asked for"


@given(texts | st.integers() | st.floats() | st.binary(max_size=20) | st.lists(st.integers()))
@example("{site.__class__}")
@example("{width}{{}}")
@example("a\\nb")
@example("%s%n%(site)s")
@example("*?[a-z]")
@example("9" * 5000)
def test_a_value_is_never_a_template(value):
    name = Template("rebuild:{site}", REBUILD).of_call((value,), {})

    assert name.startswith("rebuild:")
    assert check_name(name) == name
    if isinstance(value, str) and value.isprintable() and len(value.encode()) < 400:
        assert name == "rebuild:" + value.replace("\\", r"\\")


@given(st.tuples(texts, texts), st.tuples(texts, texts))
@example(("a:b", "c"), ("a", "b:c"))
@example(("a'", "b"), ("a", "'b"))
@example(("\n", "a"), ("\\n", "a"))
def test_fields_with_different_reprs_have_different_names(one, other):
    template = Template("rebuild:{site!r}:{width!r}", REBUILD)
    names = [template.of_call(each, {}) for each in (one, other)]
    assert (names[0] == names[1]) is (one == other)


# Patterns

patterns = st.text(alphabet="ab*?[]-!^$.%\\é\x00\ud7ff", max_size=12)
names = st.text(alphabet="ab*?[]-.%\\é", min_size=1, max_size=12)


def means(pattern):
    """Return a regular expression for a pattern, according to the reference."""
    return "".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in pattern)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pattern=patterns, held=st.sets(names, min_size=1, max_size=5))
@example("[ab]:1", {"a:1", "[ab]:1"})
@example("a\\*", {"a*", "a\\1"})
@example("A*", {"a", "Ab"})
@example("", {"a"})
def test_a_pattern_matches_the_same_names_in_redis_and_python(tenant, pattern, held):
    tenant.client.flushdb()
    for name in held:
        tenant.lock(name, tenant.holder(), beside=name)

    found = {name for name in held if re.fullmatch(means(pattern), name, re.DOTALL)}
    assert {info.name for info in locks.active(pattern)} == found
    assert {info.name for info in locks.page(pattern).infos} == found
    assert {name for name in held if any_of((pattern,)).match(name)} == found


LONG = ["*" * 100_000 + "b", "*a" * 250 + "b", "a*" * 250 + "b", "%a*" * 170 + "b"]
LONG += ["?" * 511 + "b", "*?" * 250 + "b", "?" * 100_000, "a" * 100_000, "*?a" * 30_000]


def test_no_pattern_takes_long(tenant):
    """The names are valid, or invalid data of another tenant."""
    name = "a" * MAX_NAME_BYTES
    tenant.lock(name, tenant.holder(), beside=name)
    for long in (b"a" * 400_000, b"\xc3" + b"\x80" * 400_000):
        theirs = {long + b"%d" % at: 9e12 for at in range(4)}
        tenant.client.zadd(key_of(name, "index"), theirs)

    for pattern in LONG:
        before = seconds_in_scripts(tenant.client)
        assert locks.page(pattern).total == 0
        assert seconds_in_scripts(tenant.client) - before < 0.5, f"{pattern[:9]} stalls the server"
    for pattern in (
        "?" * MAX_NAME_BYTES,
        "*" * MAX_NAME_BYTES,
        name,
        "a*" * (MAX_NAME_BYTES // 2),
    ):
        assert [info.name for info in locks.page(pattern).infos] == [name]
