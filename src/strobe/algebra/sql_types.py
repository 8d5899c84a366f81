"""The type of an expression as far as it decides something before Spark sees it: whether a sum of it is exact.

Types are Spark's, without the precision of what is computed: `decimal` may be any. None is an unknown type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import expressions as exp

from strobe.algebra.sql_functions import words

INTEGERS = words("tinyint smallint int bigint")
FRACTIONS = words("float double")
_NULL = "void"
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Mod)
_TRUTHS = (exp.Predicate, exp.Connector, exp.Not, exp.Boolean)
_CASTS = {
    **{name: name for name in words("tinyint smallint int bigint float double string boolean binary date timestamp")},
    "decimal": "decimal",
    "byte": "tinyint",
    "short": "smallint",
    "long": "bigint",
    "integer": "int",
    "dec": "decimal",
    "numeric": "decimal",
    "real": "float",
}
_SAME = words("""
    coalesce ifnull nvl greatest least abs negative positive nullif nullifzero zeroifnull nanvl min max
""")
"""Functions whose result has the common type of their arguments."""
_DOUBLES = words("""
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh cot csc degrees e exp expm1 hypot ln log log10 log1p log2
    months_between pi pow power radians rint sec sin sinh sqrt tan tanh percentile median percent_rank cume_dist
""")
_COUNTS = words("""
    array_position array_size ascii bit_count bit_length cardinality char_length character_length count count_if
    crc32 date_diff datediff day dayofmonth dayofweek dayofyear dense_rank find_in_set hash hour instr
    json_array_length len length levenshtein locate minute month ntile octet_length position quarter rank
    regexp_count regexp_instr row_number sign_of size timestampdiff unix_date unix_micros unix_millis unix_seconds
    unix_timestamp to_unix_timestamp weekday weekofyear width_bucket xxhash64 year
""")
_TEXTS = words("""
    base64 btrim char chr concat_ws date_format elt format_number format_string from_unixtime get_json_object hex
    initcap lcase left lower lpad ltrim md5 monthname dayname regexp_extract regexp_replace regexp_substr repeat
    replace right rpad rtrim sha sha1 sha2 soundex space split_part string substr substring substring_index to_char
    translate trim ucase upper
""")


def base(type_: str | None) -> str:
    return (type_ or "").split("(", 1)[0].strip()


def exact(type_: str | None) -> bool:
    """Whether sums of such values are the same in any order."""
    return base(type_) in INTEGERS or base(type_) == "decimal"


def fractional(type_: str | None) -> bool:
    """Whether Spark sums such values as doubles."""
    return base(type_) in FRACTIONS or base(type_) == "string"


def common(types: Sequence[str | None]) -> str | None:
    """The type that values of several types have together, in CASE, COALESCE or UNION."""
    known = [base(type_) if len(set(types)) > 1 else type_ or "" for type_ in types if type_ != _NULL]
    if not known:
        return _NULL
    if "" in known:
        return None
    if len(set(known)) == 1:
        return known[0]
    if all(k in INTEGERS or k in FRACTIONS or k == "decimal" for k in known):
        return _widest(known)
    return None


def _widest(known: Sequence[str]) -> str:
    for type_ in ("double", "float", "decimal", "bigint", "int", "smallint"):
        if type_ in known:
            return "double" if type_ == "float" and set(known) - {"float"} else type_
    return "tinyint"


def infer(node: exp.Expr, column_type: Callable[[exp.Column], str | None]) -> str | None:
    """The type of an expression, given its columns'."""

    def of(child: exp.Expr | None) -> str | None:
        return infer(child, column_type) if isinstance(child, exp.Expr) else None

    if isinstance(node, exp.Column):
        return column_type(node)
    if isinstance(node, exp.Literal):
        return _literal(node)
    if isinstance(node, exp.Null):
        return _NULL
    if isinstance(node, (exp.Paren, exp.Neg)):
        return of(node.this)
    if isinstance(node, _TRUTHS):
        return "boolean"
    if isinstance(node, (exp.Cast, exp.TryCast)):
        written = node.to.sql(dialect="spark").lower()
        return _CASTS.get(base(written)) if base(written) != "decimal" else "decimal"
    if isinstance(node, _ARITHMETIC):
        return _arithmetic(of(node.this), of(node.expression))
    if isinstance(node, exp.Div):
        result = _arithmetic(of(node.this), of(node.expression))
        return "double" if base(result) in INTEGERS else result
    if isinstance(node, exp.IntDiv):
        return "bigint"
    if isinstance(node, exp.Case):
        results = [of(branch.args.get("true")) for branch in node.args.get("ifs") or ()]
        default = node.args.get("default")
        return common([*results, of(default) if default is not None else _NULL])
    if isinstance(node, exp.Func):
        return _called(node, of)
    return None


def _literal(node: exp.Literal) -> str | None:
    if node.is_string:
        return "string"
    written = node.name.lower()
    if "e" in written:
        return "double"
    return "decimal" if "." in written else "bigint" if int(written) >= 2**31 else "int"


def _arithmetic(left: str | None, right: str | None) -> str | None:
    if _NULL in (left, right):
        left, right = (right, right) if left == _NULL else (left, left)
    known = [base(left), base(right)]
    if not all(k in INTEGERS or k in FRACTIONS or k == "decimal" for k in known):
        return None
    return _widest(known)


def _called(node: exp.Func, of: Callable[[exp.Expr | None], str | None]) -> str | None:
    name = (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()
    arguments = node.expressions
    if name == "if" and len(arguments) == 3:
        return common([of(a) for a in arguments[1:]])
    if isinstance(node, exp.If):
        return common([of(node.args.get("true")), of(node.args.get("false"))])
    if name == "nvl2" and len(arguments) == 3:
        return common([of(a) for a in arguments[1:]])
    if name in _SAME and arguments:
        return common([of(a) for a in (arguments[:1] if name == "nullif" else arguments)])
    if name in ("round", "bround", "ceil", "ceiling", "floor", "try_add", "try_subtract", "try_multiply") and arguments:
        first = of(arguments[0])
        if name.startswith("try_") and len(arguments) == 2:
            return _arithmetic(first, of(arguments[1]))
        if name in ("ceil", "ceiling", "floor"):
            return "decimal" if base(first) == "decimal" or len(arguments) > 1 else "bigint" if first else None
        return base(first) if base(first) in INTEGERS | FRACTIONS | {"decimal"} else None
    if name in _CASTS:
        return _CASTS[name]
    if name in _DOUBLES:
        return "double"
    if name in _COUNTS:
        return "bigint"
    return "string" if name in _TEXTS else None
