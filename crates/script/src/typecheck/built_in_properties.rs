//! The properties of built-in types and global objects.

use super::types::Type;

/// Properties of every value except `null` and `undefined`. `__proto__` and its relatives exist,
/// though `tsc` does not know them.
pub(super) const OBJECT_PROPERTIES: [&str; 12] = [
    "constructor",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "toLocaleString",
    "toString",
    "valueOf",
    "__proto__",
    "__defineGetter__",
    "__defineSetter__",
    "__lookupGetter__",
    "__lookupSetter__",
];

/// Properties of lists. `groups`, `index` and `input` belong to matches of a regular expression,
/// which are lists of strings here.
pub(super) const ARRAY_PROPERTIES: [&str; 42] = [
    "length",
    "at",
    "concat",
    "copyWithin",
    "entries",
    "every",
    "fill",
    "filter",
    "find",
    "findIndex",
    "findLast",
    "findLastIndex",
    "flat",
    "flatMap",
    "forEach",
    "includes",
    "indexOf",
    "join",
    "keys",
    "lastIndexOf",
    "map",
    "pop",
    "push",
    "reduce",
    "reduceRight",
    "reverse",
    "shift",
    "slice",
    "some",
    "sort",
    "splice",
    "toLocaleString",
    "toReversed",
    "toSorted",
    "toSpliced",
    "toString",
    "unshift",
    "values",
    "with",
    "groups",
    "index",
    "input",
];

const STRING_PROPERTIES: [&str; 51] = [
    "length",
    "anchor",
    "at",
    "big",
    "blink",
    "bold",
    "charAt",
    "charCodeAt",
    "codePointAt",
    "concat",
    "endsWith",
    "fixed",
    "fontcolor",
    "fontsize",
    "includes",
    "indexOf",
    "isWellFormed",
    "italics",
    "lastIndexOf",
    "link",
    "localeCompare",
    "match",
    "matchAll",
    "normalize",
    "padEnd",
    "padStart",
    "repeat",
    "replace",
    "replaceAll",
    "search",
    "slice",
    "small",
    "split",
    "startsWith",
    "strike",
    "sub",
    "substr",
    "substring",
    "sup",
    "toLocaleLowerCase",
    "toLocaleUpperCase",
    "toLowerCase",
    "toString",
    "toUpperCase",
    "toWellFormed",
    "trim",
    "trimEnd",
    "trimLeft",
    "trimRight",
    "trimStart",
    "valueOf",
];

const NUMBER_PROPERTIES: [&str; 6] = [
    "toExponential",
    "toFixed",
    "toLocaleString",
    "toPrecision",
    "toString",
    "valueOf",
];

const PROMISE_PROPERTIES: [&str; 3] = ["then", "catch", "finally"];

const MAP_PROPERTIES: [&str; 12] = [
    "size",
    "get",
    "set",
    "has",
    "delete",
    "clear",
    "keys",
    "values",
    "entries",
    "forEach",
    "getOrInsert",
    "getOrInsertComputed",
];

const SET_PROPERTIES: [&str; 16] = [
    "size",
    "add",
    "has",
    "delete",
    "clear",
    "keys",
    "values",
    "entries",
    "forEach",
    "union",
    "intersection",
    "difference",
    "symmetricDifference",
    "isSubsetOf",
    "isSupersetOf",
    "isDisjointFrom",
];

const ITERATOR_PROPERTIES: [&str; 14] = [
    "next", "return", "throw", "map", "filter", "take", "drop", "flatMap", "reduce", "toArray",
    "forEach", "some", "every", "find",
];

const METHOD_PROPERTIES: [&str; 8] = [
    "apply",
    "call",
    "bind",
    "length",
    "name",
    "prototype",
    "arguments",
    "caller",
];

/// Returns the properties of a built-in type.
pub(super) fn property_names(kind: &Type<'_>) -> &'static [&'static str] {
    match kind {
        Type::Array { .. } | Type::Tuple { .. } => &ARRAY_PROPERTIES,
        Type::String | Type::Literal(_) => &STRING_PROPERTIES,
        Type::Number => &NUMBER_PROPERTIES,
        Type::Boolean => &["valueOf", "toString"],
        Type::Promise(_) => &PROMISE_PROPERTIES,
        Type::Map(..) => &MAP_PROPERTIES,
        Type::Set(_) => &SET_PROPERTIES,
        Type::Iterator(_) => &ITERATOR_PROPERTIES,
        Type::Method => &METHOD_PROPERTIES,
        _ => &[],
    }
}

/// Returns the properties of a global object, separated by spaces, if they are listed here.
pub(super) fn static_properties(global: &str) -> Option<&'static str> {
    Some(match global {
        "Promise" => {
            "all allSettled any race reject resolve try withResolvers prototype name length"
        }
        "JSON" => "parse stringify rawJSON isRawJSON",
        "Date" => "now parse UTC prototype name length",
        "Object" => {
            "assign create defineProperties defineProperty entries freeze fromEntries \
             getOwnPropertyDescriptor getOwnPropertyDescriptors getOwnPropertyNames \
             getOwnPropertySymbols getPrototypeOf groupBy hasOwn is isExtensible isFrozen isSealed \
             keys preventExtensions seal setPrototypeOf values prototype name length"
        }
        "Array" => "from fromAsync isArray of prototype name length",
        "Number" => {
            "EPSILON MAX_SAFE_INTEGER MAX_VALUE MIN_SAFE_INTEGER MIN_VALUE NEGATIVE_INFINITY \
             NaN POSITIVE_INFINITY isFinite isInteger isNaN isSafeInteger parseFloat parseInt \
             prototype name length"
        }
        "Math" => {
            "E LN10 LN2 LOG10E LOG2E PI SQRT1_2 SQRT2 abs acos acosh asin asinh atan atan2 atanh \
             cbrt ceil clz32 cos cosh exp expm1 f16round floor fround hypot imul log log10 log1p \
             log2 max min pow random round sign sin sinh sqrt sumPrecise tan tanh trunc"
        }
        _ => return None,
    })
}
