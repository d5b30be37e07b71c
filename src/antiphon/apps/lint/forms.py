"""Forms that no client can be asked for, as far as a file shows their fields.

What a handler names of its module is refused when it is registered. Seen only here: forms of helper
functions, forms that are defined inside of functions, and those that a name or a condition chooses.
"""

import ast
from collections.abc import Iterator

from antiphon.apps.lint.handlers import HandlerSource
from antiphon.protocol.secret_names import looks_secret

_MODELS = frozenset({"BaseModel", "TypedDict", "Struct", "NamedTuple"})
_NO_FORMS = frozenset({"str", "int", "float", "bool", "list", "dict"})
_REFUSED = frozenset(
    {"Any", "object", "bytes", "dict", "Dict", "Mapping", "MutableMapping", "tuple", "Tuple"}
)
_LISTS = frozenset(
    {"list", "List", "set", "Set", "frozenset", "FrozenSet", "Sequence", "Iterable", "Collection"}
)
_FREE = frozenset({"str", "int", "float", "bool"})
_SECRETS = frozenset({"SecretStr", "SecretBytes", "Secret"})
_TYPED = frozenset({"str", "int", "float", "Decimal", "UUID", "Path"})
"""Types of values that a person types."""

_MARK = "not-secret"
"""In the keyword with which an author says that a field only looks like a secret."""


def refused_forms(handler: HandlerSource) -> Iterator[ast.AST]:
    """Yield fields that no form can ask for, and questions with what is no form."""
    for node in handler.own:
        form = _form_of(handler, node)
        for one in _choices(handler, form, set()):
            if one.id in _NO_FORMS and not _definitions(handler, one.id):
                yield node
            for body in _definitions(handler, one.id):
                yield from _refused_fields(handler, body, set())


def _form_of(handler: HandlerSource, node: ast.AST) -> ast.expr | None:
    """Return the form that a question is given."""
    if not isinstance(node, ast.Call):
        return None
    asks = handler.method(node) == "elicit" or _last(node.func) == "Elicit"
    given = [*node.args[1:2], *(one.value for one in node.keywords if one.arg == "form")]
    return given[0] if asks and given else None


def _choices(handler: HandlerSource, form: ast.expr | None, seen: set[str]) -> Iterator[ast.Name]:
    """Yield the names that a form may stand for, through conditions and local names."""
    match form:
        case ast.IfExp(body=body, orelse=orelse):
            yield from _choices(handler, body, seen)
            yield from _choices(handler, orelse, seen)
        case ast.Name(id=name) if name not in seen:
            assigned = [
                node.value
                for node in handler.own
                if isinstance(node, ast.Assign)
                and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
            ]
            if not assigned and (name not in handler.names or _definitions(handler, name)):
                yield form
            for value in assigned:
                yield from _choices(handler, value, seen | {name})
        case _:
            return


def _definitions(handler: HandlerSource, name: str) -> list[ast.ClassDef]:
    """Return the class of a name: the one inside the function, or else the only one of the file."""
    named = [body for body in handler.judge.names.class_bodies if body.name == name]
    inside = [body for body in named if body in handler.parents]
    found = inside or named
    return found if len(found) == 1 else []


def _refused_fields(
    handler: HandlerSource, body: ast.ClassDef, seen: set[str]
) -> Iterator[ast.AST]:
    for base in body.bases:
        for inherited in _definitions(handler, _last(base)):
            if inherited.name not in seen:
                yield from _refused_fields(handler, inherited, seen | {body.name})
    for statement in body.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        if name.startswith("_") or name == "model_config":
            continue
        kinds = list(_kinds(statement.annotation))
        if any(_is_refused(handler, kind) for kind in kinds) or _is_secret(statement, name, kinds):
            yield statement


def _kinds(annotation: ast.expr) -> Iterator[ast.expr]:
    """Yield what a value may be: the parts of a union, without `Annotated` and `Optional`."""
    match annotation:
        case ast.Constant(value=str(text)):
            try:
                yield from _kinds(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from _kinds(left)
            yield from _kinds(right)
        case ast.Subscript(value=outer, slice=inner) if _last(outer) in ("Annotated", "ClassVar"):
            if _last(outer) == "Annotated" and isinstance(inner, ast.Tuple):
                yield from _kinds(inner.elts[0])
        case ast.Subscript(value=outer, slice=inner) if _last(outer) in ("Optional", "Union"):
            for part in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                yield from _kinds(part)
        case _:
            yield annotation


def _is_refused(handler: HandlerSource, kind: ast.expr) -> bool:
    name = _last(kind.value if isinstance(kind, ast.Subscript) else kind)
    if name in _SECRETS or _is_model(handler, name, set()):
        return True
    if _definitions(handler, name):
        return False
    if name in _LISTS:
        inner = kind.slice if isinstance(kind, ast.Subscript) else None
        return inner is None or any(
            _last(one) in _FREE or _is_refused(handler, one) for one in _kinds(inner)
        )
    return name in _REFUSED


def _is_model(handler: HandlerSource, name: str, seen: set[str]) -> bool:
    """Say whether a class of this file has fields of its own."""
    return any(
        bool(_MODELS.intersection(map(_last, body.bases)))
        or any(_last(one) == "dataclass" for one in body.decorator_list)
        or any(
            _is_model(handler, _last(base), seen | {name})
            for base in body.bases
            if _last(base) not in seen | {name}
        )
        for body in _definitions(handler, name)
    )


def _is_secret(statement: ast.AnnAssign, name: str, kinds: list[ast.expr]) -> bool:
    """Say whether a field asks for a secret by its name or title."""
    if not any(_last(kind) in _TYPED for kind in kinds):
        return False
    texts = [
        one.value
        for part in (statement.annotation, statement.value)
        if part is not None
        for one in ast.walk(part)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    marks = [*texts, *(_last(one) for one in _names_in(statement))]
    if any(_MARK in mark.lower().replace("_", "-") for mark in marks):
        return False
    return looks_secret(name) or any(looks_secret(title) for title in _titles(statement))


def _names_in(statement: ast.AnnAssign) -> list[ast.expr]:
    return [one for one in ast.walk(statement) if isinstance(one, ast.Name | ast.Attribute)]


def _titles(statement: ast.AnnAssign) -> list[str]:
    return [
        one.value.value
        for one in ast.walk(statement)
        if isinstance(one, ast.keyword)
        and one.arg == "title"
        and isinstance(one.value, ast.Constant)
        and isinstance(one.value.value, str)
    ]


def _last(node: ast.expr) -> str:
    """Return the last part of a name; of a call, that of what is called."""
    match node:
        case ast.Call(func=called):
            return _last(called)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
