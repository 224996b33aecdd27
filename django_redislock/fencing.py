"""Fenced writes in the ORM: the database rejects a write if a newer holder of the lock has already
written the row. The idea is from Kleppmann, 2016: *How to do distributed locking*."""

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, overload

from asgiref.sync import sync_to_async
from django.db import DatabaseError, models, router, transaction
from django.db.models.expressions import Combinable, RawSQL
from django.db.models.manager import BaseManager
from django.db.models.sql import Query
from django.db.models.sql.where import ExtraWhere

from .exceptions import StaleLock
from .names import short_repr

M = TypeVar("M", bound=models.Model)

MAX_FENCE_TOKEN = 2**63 - 1


class HeldLock(Protocol):
    """The part of a lock that fenced writes need."""

    @property
    def fence_token(self) -> int | None: ...

    def assert_held(self) -> None: ...


LockOrToken: TypeAlias = HeldLock | int


if TYPE_CHECKING:
    Integers = models.BigIntegerField[int | Combinable, int]
else:
    Integers = models.BigIntegerField  # takes no [] at run time


class FenceField(Integers):
    """A model field for the fencing token of the last fenced write. 0 before the first one.

    Only fenced writes, `QuerySet.update` and `bulk_update` change it. A plain `save()` does not
    change the column of an existing row.

    Raises:
        TypeError: An option is not supported: `choices`, `default`, `editable`, `null`,
            `primary_key` or `unique`.
    """

    description = "Fencing token"

    _fixed = ("choices", "default", "editable", "null", "primary_key", "unique")

    def __init__(self, verbose_name: Any = None, **options: Any) -> None:
        for name in self._fixed:
            if name in options:
                raise TypeError(f"FenceField does not accept {name}={options[name]!r}")
        super().__init__(verbose_name, default=0, editable=False, **options)

    def deconstruct(self) -> Any:
        name, path, args, options = super().deconstruct()
        for each in self._fixed:
            options.pop(each, None)
        return name, path, args, options

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        # The value of the instance can be outdated, and must not replace a larger token.
        return super().pre_save(model_instance, add) if add else models.F(self.name)


@overload
def fenced(
    target: models.QuerySet[M] | BaseManager[M], lock: LockOrToken, *, field: str | None = None
) -> "FencedRows[M]": ...
@overload
def fenced(target: M, lock: LockOrToken, *, field: str | None = None) -> "FencedInstance[M]": ...
def fenced(target: Any, lock: LockOrToken, *, field: str | None = None) -> Any:
    """Return an object whose writes to `target` fail if a newer holder of `lock` has written.

    >>> fenced(Account.objects.filter(pk=1), lock).update(balance=F("balance") - 10)
    >>> fenced(account, lock).save()
    >>> fenced(Account.objects.all(), lock).get(pk=1)  # SELECT ... FOR UPDATE

    The methods of the returned object raise `StaleLock` if a newer holder has written, and
    `LockLost` or `LockNotOwnedError` if the caller does not hold the lock.

    Args:
        target: A queryset, a manager or an instance of a model with a `FenceField`.
        lock: A lock that the caller holds, or its `fence_token`.
        field: The name of the `FenceField`, if the model has several.

    Returns:
        A `FencedInstance` for an instance, or else `FencedRows`.

    Raises:
        TypeError: `target` is not a queryset, manager or instance, or its model has no
            `FenceField` or several tables.
        ValueError: `field` does not name a `FenceField` of the model.
    """
    if isinstance(target, models.Model):
        return FencedInstance(target, lock, _fence_of(type(target), field))
    if isinstance(target, models.QuerySet | BaseManager):
        return FencedRows(target.all(), lock, _fence_of(target.model, field))
    raise TypeError(
        f"target must be a queryset, a manager or an instance, got {short_repr(target)}"
    )


class FencedRows(Generic[M]):
    """Fenced writes to the rows of a queryset. Created by `fenced()`."""

    def __init__(self, queryset: models.QuerySet[M], lock: LockOrToken, fence: FenceField) -> None:
        self.queryset = queryset
        self.lock = lock
        self.fence = fence

    def update(self, **values: Any) -> int:
        """Update the matching rows as `QuerySet.update` does, together with the fencing token.

        If a newer holder has written one of the rows, no row is changed, and an enclosing `atomic`
        block is rolled back.

        Args:
            **values: The new values by field name.

        Returns:
            The number of rows that matched.

        Raises:
            StaleLock: A newer holder has written one of the rows.
            LockNotOwnedError: The caller does not hold the lock.
            TypeError: A condition of the queryset uses other tables, or a subquery.
            ValueError: `values` has the `FenceField`.
        """
        return self._update(token_of(self.lock), values)

    async def aupdate(self, **values: Any) -> int:
        """Async version of `update()`."""
        return await sync_to_async(self._update)(token_of(self.lock), values)

    def get(self, *conditions: Any, **lookups: Any) -> M:
        """Return the one row that matches, as `QuerySet.get` does, and lock the row.

        The row is locked with ``SELECT ... FOR UPDATE`` until the transaction ends. This needs a
        transaction. Options of the queryset such as `nowait` and `of` apply. SQLite cannot lock a
        row. There a newer holder can still write, and then `update()` or `save()` raises.

        Raises:
            StaleLock: A newer holder has written the row.
            LockNotOwnedError: The caller does not hold the lock.
        """
        token = token_of(self.lock)
        is_locking = self.queryset.query.select_for_update
        rows = self.queryset if is_locking else self.queryset.select_for_update()
        row = rows.get(*conditions, **lookups)
        found: int = getattr(row, self.fence.attname)
        if found > token:
            raise _stale(self.fence, self.lock, token, row.pk, found)
        return row

    def _update(self, token: int, values: dict[str, Any]) -> int:
        if self.fence.name in values:
            raise ValueError(f"update() cannot set {self.fence}: fenced() does that")
        # A plain queryset's `db` is the router's choice for reading.
        rows = self.queryset.using(self.queryset.select_for_update().db)
        guarded = rows.filter(**{f"{self.fence.name}__lte": token})
        # A database that has waited for a locked row checks only the columns of this row again.
        # And after the update, conditions on other rows can hide a newer row from `_refuse_newer`.
        if _reads_other_rows(guarded.query):
            raise TypeError(
                f"fenced() cannot update() this queryset of {self.fence.model._meta.label}: its "
                "conditions use other tables or subqueries. Read the primary keys first, and use "
                "filter(pk__in=[...])."
            )
        with transaction.atomic(using=rows.db, savepoint=False):
            updated = guarded.update(**values, **{self.fence.name: token})
            _refuse_newer(rows, self.fence, self.lock, token)
            return updated


class FencedInstance(Generic[M]):
    """Fenced writes of one model instance. Created by `fenced()`."""

    def __init__(self, instance: M, lock: LockOrToken, fence: FenceField) -> None:
        self.instance = instance
        self.lock = lock
        self.fence = fence

    def save(self, *, using: str | None = None, **options: Any) -> None:
        """Save the instance with its own `save()`, together with the fencing token.

        A new instance is inserted. After an exception, the instance keeps its old fencing token,
        and an enclosing `atomic` block is rolled back.

        Args:
            using: The database alias. None means the choice of the router.
            **options: The other arguments of the instance's own `save()`.

        Raises:
            StaleLock: A newer holder has written the row.
            LockNotOwnedError: The caller does not hold the lock.
            django.db.DatabaseError: The instance was read from the database, but its row no longer
                exists.
        """
        self._save(token_of(self.lock), using, options)

    async def asave(self, *, using: str | None = None, **options: Any) -> None:
        """Async version of `save()`."""
        await sync_to_async(self._save)(token_of(self.lock), using, options)

    def delete(self, *, using: str | None = None) -> tuple[int, dict[str, int]]:
        """Delete the instance as `Model.delete` does. A row that no longer exists is not an error.

        A deleted row has no fencing token, so a stale holder can insert a row with the same key.

        Raises:
            StaleLock: A newer holder has written the row.
            LockNotOwnedError: The caller does not hold the lock.
        """
        return self._delete(token_of(self.lock), using)

    async def adelete(self, *, using: str | None = None) -> tuple[int, dict[str, int]]:
        """Async version of `delete()`."""
        return await sync_to_async(self._delete)(token_of(self.lock), using)

    def _save(self, token: int, using: str | None, options: dict[str, Any]) -> None:
        if options.get("update_fields") is not None:
            options["update_fields"] = [*options["update_fields"]]
            if not options["update_fields"]:
                return  # as Model.save does
        db = self._db(using)
        values, fence = vars(self.instance), self.fence.attname
        before = {fence: values[fence]} if fence in values else {}
        with transaction.atomic(using=db, savepoint=False):
            if self._has_pk() and not options.get("force_insert") and not self._claim(db, token):
                self._check_insert(options.get("force_update") or options.get("update_fields"))
                options["force_insert"] = True
            try:
                values[fence] = token
                self.instance.save(using=db, **options)
            except BaseException:
                values.pop(fence, None)
                values.update(before)
                raise

    def _delete(self, token: int, using: str | None) -> tuple[int, dict[str, int]]:
        db = self._db(using)
        with transaction.atomic(using=db, savepoint=False):
            if self._has_pk() and not self._claim(db, token):
                return 0, {}
            return self.instance.delete(using=db)

    def _claim(self, db: str, token: int) -> int:
        """Write only the fencing token. This locks the row before the instance is saved."""
        rows = self.fence.model._base_manager.using(db).filter(pk=self.instance.pk)
        guarded = rows.filter(**{f"{self.fence.name}__lte": token})
        claimed = guarded.update(**{self.fence.name: token})
        if not claimed:
            _refuse_newer(rows, self.fence, self.lock, token)
        return claimed

    def _check_insert(self, only_update: object) -> None:
        """Raise an error, unless the instance is new and may be inserted."""
        if self.instance._state.adding and not only_update:
            return
        error: type[Exception] = getattr(self.instance, "NotUpdated", DatabaseError)
        label = self.instance._meta.label
        raise error(f"Fenced save updated no row: {label} {self.instance.pk!r} does not exist")

    def _has_pk(self) -> bool:
        pk = self.instance.pk
        parts = pk if isinstance(pk, tuple) else (pk,)
        # A key that the database will make is an expression until then.
        return not any(part is None or hasattr(part, "resolve_expression") for part in parts)

    def _db(self, using: str | None) -> str:
        return using or router.db_for_write(type(self.instance), instance=self.instance)


def token_of(lock: LockOrToken) -> int:
    """Return the fencing token of a lock that the caller holds, or the token itself.

    Raises:
        LockNotOwnedError: The caller does not hold the lock.
    """
    if isinstance(lock, bool) or not (isinstance(lock, int) or hasattr(lock, "assert_held")):
        raise TypeError(f"lock must be a lock or a fencing token, got {short_repr(lock)}")
    if isinstance(lock, int):
        if not 0 < lock <= MAX_FENCE_TOKEN:
            raise ValueError(f"lock must be from 1 to {MAX_FENCE_TOKEN}, got {short_repr(lock)}")
        return lock
    token = lock.fence_token
    lock.assert_held()
    if token is None:
        raise TypeError(f"{lock!r} has several fencing tokens. Pass one: lock.fence_tokens[name]")
    return token


def _fence_of(model: type[models.Model], name: str | None) -> FenceField:
    if (model._meta.concrete_model or model)._meta.parents:
        raise TypeError(
            f"{model._meta.label} has several tables (multi-table inheritance), which fenced() "
            "cannot write"
        )
    fences = {
        field.name: field for field in model._meta.concrete_fields if isinstance(field, FenceField)
    }
    if not fences:
        raise TypeError(f"{model._meta.label} has no FenceField")
    if name is None and len(fences) > 1:
        raise ValueError(f"{model._meta.label} has several FenceFields. Choose one with field.")
    name = next(iter(fences)) if name is None else name
    if name not in fences:
        raise ValueError(
            f"field must be a FenceField of {model._meta.label}, got {short_repr(name)}"
        )
    return fences[name]


def _reads_other_rows(query: Query) -> bool:
    """Return whether a condition of a query, or a part of it, can read other rows."""
    has_tables = query.count_active_tables() > 1 or query.group_by is not None
    return has_tables or _has_subquery(query.where)


def _has_subquery(expression: Any) -> bool:
    parts: list[Any] = getattr(expression, "get_source_expressions", list)()
    return isinstance(expression, Query | RawSQL | ExtraWhere) or any(map(_has_subquery, parts))


def _refuse_newer(
    rows: models.QuerySet[Any], fence: FenceField, lock: LockOrToken, token: int
) -> None:
    newer = rows.filter(**{f"{fence.name}__gt": token}).order_by(f"-{fence.name}")
    newer.query.select_for_update = False  # It could skip rows that others have locked.
    found = newer.values_list("pk", fence.name).first()
    if found:
        raise _stale(fence, lock, token, *found)


def _stale(fence: FenceField, lock: LockOrToken, token: int, pk: Any, found: int) -> StaleLock:
    return StaleLock(fence.model._meta.label, pk, token, found, getattr(lock, "name", None))
