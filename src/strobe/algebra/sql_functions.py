"""The functions of Spark that a view may call, by the name the user writes, and what is said of the others.

On the list: deterministic, one row in and one value out, and dependent on nothing but the arguments. Off the list,
although deterministic: functions whose results Delta cannot store or rows cannot be compared by (maps, variants), and
those whose purpose is to fail or to call foreign code.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ARRAYS = """
    array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_union
    arrays_overlap flatten get sequence slice sort_array cardinality element_at size try_element_at split
    sentences regexp_extract_all
"""

_BITS = "bit_count bit_get getbit shiftleft shiftright shiftrightunsigned"

_CONDITIONS = """
    coalesce if ifnull nanvl nullif nullifzero nvl nvl2 zeroifnull equal_null isnan isnotnull isnull like ilike
    regexp regexp_like rlike
"""

_CONVERSIONS = """
    bigint binary boolean cast date decimal double float int smallint string timestamp tinyint try_cast to_binary
    to_char to_date to_number to_timestamp to_timestamp_ltz to_timestamp_ntz to_varchar try_to_binary try_to_date
    try_to_number try_to_timestamp
"""

_DATES = """
    add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc
    dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp
    hour last_day make_date make_dt_interval make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_ym_interval minute month monthname months_between next_day quarter second timestamp_micros
    timestamp_millis timestamp_seconds timestampadd timestampdiff to_unix_timestamp to_utc_timestamp trunc
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz unix_date unix_micros unix_millis
    unix_seconds unix_timestamp weekday weekofyear year
"""

_HASHES = "crc32 hash md5 sha sha1 sha2 xxhash64"

_JSON = "get_json_object json_array_length json_object_keys"

_MATHS = """
    abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees div e
    exp expm1 factorial floor greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod positive pow
    power radians rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply
    try_subtract unhex width_bucket
"""

_STRINGS = """
    ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains decode elt
    encode endswith find_in_set format_number format_string initcap instr is_valid_utf8 lcase left len length
    levenshtein locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay parse_url position
    printf quote regexp_count regexp_extract regexp_instr regexp_replace regexp_substr repeat replace reverse
    right rpad rtrim soundex space split_part startswith substr substring substring_index translate trim
    try_parse_url try_url_decode try_validate_utf8 ucase unbase64 upper url_decode url_encode validate_utf8
"""

_OTHERS = "aes_decrypt try_aes_decrypt named_struct struct typeof"

_GROUPS = (_ARRAYS, _BITS, _CONDITIONS, _CONVERSIONS, _DATES, _HASHES, _JSON, _MATHS, _STRINGS, _OTHERS)

ALLOWED = words(" ".join(_GROUPS))

SYNTAX = frozenset({"cast", "try_cast", "extract", "timestampadd", "timestampdiff"})
"""Names on the list that are part of Spark's grammar rather than of its function registry (some are both)."""

AGGREGATES = words("""
    any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or
    collect_list collect_set corr count count_if covar_pop covar_samp every first first_value grouping grouping_id
    histogram_numeric kurtosis last last_value listagg max max_by mean median min min_by mode percentile
    percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2
    regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg
    try_sum var_pop var_samp variance
""")

WINDOWS = words("cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number")

GENERATORS = words("explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack")

LAMBDAS = words("""
    aggregate array_sort exists filter forall map_filter map_zip_with reduce transform transform_keys
    transform_values zip_with
""")

VOLATILE = words("""
    aes_encrypt curdate current_catalog current_database current_date current_schema current_time
    current_timestamp current_timezone current_user input_file_block_length input_file_block_start input_file_name
    localtime localtimestamp monotonically_increasing_id now rand randn random randstr session_user shuffle
    spark_partition_id uniform user uuid version
""")

VOLATILE_WITHOUT_ARGUMENTS = frozenset({"unix_timestamp", "to_unix_timestamp"})


def refusal(name: str) -> tuple[str, str] | None:
    """Why a function may not be called, and what to write instead; None if it may."""
    name = name.lower()
    if name in ALLOWED:
        return None
    if name in ("any", "some"):
        return f"the aggregate {name}()", "Write bool_or(), which is the same."
    if name in LAMBDAS:
        return f"the higher-order function {name}()", "Lambdas are not supported: apply them when you read the view."
    if name in VOLATILE:
        fix = "A view may depend on the sources' rows only: take the value from a column, or apply it when you read."
        return f"the volatile function {name}(), which does not depend on its arguments alone", fix
    return f"the unknown function {name}()", "Use Spark's own deterministic scalar functions (docs/sql.md lists them)."
