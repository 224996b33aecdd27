"""Names that are made from arguments of a call, and patterns of names. Strangers choose both."""

from inspect import signature
from typing import ClassVar

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redislock import locks
from django_redislock.names import MAX_NAME_BYTES, Template
from tests.stalls import seconds_in_scripts

from .forging import key_of


def rebuild(site, width=None): ...


REBUILD = signature(rebuild)


class Site:
    _secret = "nobody may read this"
    children: ClassVar = {"a": object()}


PRIVATE = ["{site.__class__}", "{site._secret}", "{site.children[a].__class__}"]
PRIVATE += ["{site.children.__init__.__globals__[re]}", "{site:{width.__class__}}"]
PRIVATE += [
    "{site!r:{site._secret}}",
    "{site.children[}.__class__]._secret}",
    "{site.a[.__class__}",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_a_template_cannot_access_private_attributes(text):
    with pytest.raises((ImproperlyConfigured, ValueError)) as refused:
        Template(text, REBUILD).of_call((Site(), Site()), {})
    assert Site._secret not in str(refused.value)


LONG = ["*" * 100_000 + "b", "*a" * 250 + "b", "a*" * 250 + "b", "?" * 511 + "b", "*?" * 250 + "b"]
LONG += ["?" * 100_000, "a" * 100_000, "*?a" * 30_000]


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
    for pattern in ("?" * MAX_NAME_BYTES, "*" * MAX_NAME_BYTES, "a*" * (MAX_NAME_BYTES // 2)):
        assert [info.name for info in locks.page(pattern).infos] == [name]
