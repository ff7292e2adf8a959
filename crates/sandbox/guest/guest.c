// The guest: one QuickJS realm behind a small ABI. It is compiled together with the engine
// (build.rs puts quickjs.c before it), so that it can access what the public API does not offer:
// the seed of Math.random, the hook that disables code from strings, and frame positions.
//
// Exports   init, start, settle, alloc; the data mailbox, heap_base, heap_peak
// Imports   call, sleep, cancel, message, take, now, locate, finish
//
// Between calls of the exports the wasm stack is empty: linear memory is the whole state of a
// script.

#define IMPORT(name) __attribute__((import_module("selvedge"), import_name(#name))) extern
#define EXPORT(name) __attribute__((export_name(#name)))

IMPORT(call) void host_call(uint32_t id, const char *path, size_t path_len, const char *args, size_t args_len,
                            uint32_t line, uint32_t column);
IMPORT(sleep) void host_sleep(uint32_t id, double ms);
IMPORT(cancel) void host_cancel(uint32_t id);
// Sends a message to the host. Returns the length of the reply, which `take` fetches, or -1 for
// none.
IMPORT(message) int32_t host_message(const char *channel, size_t channel_len, const char *text, size_t text_len);
IMPORT(take) void host_take(char *into);
IMPORT(now) double host_now(void);
// Maps a position in the compiled text to the text as written: line << 32 | column, or 0 for none.
IMPORT(locate) uint64_t host_locate(uint32_t line, uint32_t column);
IMPORT(finish) void host_finish(uint32_t kind, const char *text, size_t text_len);

enum { FINISH_VALUE = 0, FINISH_ERROR = 1, FINISH_MEMORY = 2, FINISH_EXIT = 3, FINISH_SYNTAX = 4 };
enum { STATE_WAITING = 0, STATE_FINISHED = 1 };
// How a call is settled: with an error described in JSON, a value, or an error object of this
// realm.
enum { SETTLE_ERROR = 0, SETTLE_VALUE = 1, SETTLE_THROW = 2 };

static const unsigned char library_source[] = {
#include "library.h"
    , 0};
static const unsigned char prelude_source[] = {
#include "prelude.h"
    , 0};

static JSRuntime *rt;
static JSContext *ctx;
static JSValue hook_run, hook_settle, hook_fail, hook_rejection; // what the prelude returned
static JSAtom script_filename; // identifies frames of the script
// Read and written by the host directly. The host writes short texts to the mailbox, which saves a
// call of `alloc`.
size_t heap_base; // heap in use after the realm was set up
size_t heap_peak; // largest heap in use so far
char mailbox[64 << 10];
static bool compiling, finished, exited;

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
    (void)tz;
    double ms = host_now();
    int64_t us = (int64_t)(ms * 1000.0);
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    (void)clock;
    struct timeval tv;
    gettimeofday(&tv, NULL);
    ts->tv_sec = tv.tv_sec;
    ts->tv_nsec = (long)tv.tv_usec * 1000;
    return 0;
}

// The engine enforces the limit by its own accounting, for which it must know the size of each
// block (it cannot find out on this target). These functions also record the peak.

extern size_t malloc_usable_size(void *ptr);

static size_t heap_usable_size(const void *ptr) { return malloc_usable_size((void *)ptr); }

static void record_heap_peak(void) {
    if (rt && rt->malloc_state.malloc_size > heap_peak)
        heap_peak = rt->malloc_state.malloc_size;
}

static void *heap_calloc(void *opaque, size_t count, size_t size) {
    (void)opaque;
    record_heap_peak();
    return calloc(count, size);
}

static void *heap_malloc(void *opaque, size_t size) {
    (void)opaque;
    record_heap_peak();
    return malloc(size);
}

static void heap_free(void *opaque, void *ptr) {
    (void)opaque;
    free(ptr);
}

static void *heap_realloc(void *opaque, void *ptr, size_t size) {
    (void)opaque;
    record_heap_peak();
    return realloc(ptr, size);
}

static const JSMallocFunctions heap = {heap_calloc, heap_malloc, heap_free, heap_realloc, heap_usable_size};

EXPORT(alloc) char *guest_alloc(size_t len) { return malloc(len + 1); }

static void release(char *text) {
    if (text != mailbox)
        free(text);
}

static bool is_script_frame(JSStackFrame *sf, JSFunctionBytecode **code) {
    if (JS_VALUE_GET_TAG(sf->cur_func) != JS_TAG_OBJECT)
        return false;
    JSObject *function = JS_VALUE_GET_OBJ(sf->cur_func);
    if (!js_class_has_bytecode(function->class_id))
        return false;
    JSFunctionBytecode *b = function->u.func.function_bytecode;
    if (b->filename != script_filename || !sf->cur_pc)
        return false;
    *code = b;
    return true;
}

// Position of the script: the innermost frame that does not belong to the prelude.
static void script_position(uint32_t *line, uint32_t *column) {
    *line = *column = 0;
    for (JSStackFrame *sf = rt->current_stack_frame; sf; sf = sf->prev_frame) {
        JSFunctionBytecode *b;
        if (!is_script_frame(sf, &b))
            continue;
        int col;
        *line = find_line_num(ctx, b, sf->cur_pc - b->byte_code_buf - 1, &col);
        *column = col;
        return;
    }
}

// Renders `error.stack` from the script's own frames, at the positions the author wrote.
static JSValue prepare_stack(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val;
    int64_t count = 0;
    DynBuf text;
    if (argc < 2 || JS_GetLength(cx, argv[1], &count) < 0)
        return JS_NewString(cx, "");
    js_dbuf_init(cx, &text);
    bool constructing = true; // still in the constructors of the error, which are omitted
    for (int64_t i = 0; i < count; i++) {
        JSValue site = JS_GetPropertyInt64(cx, argv[1], i);
        JSCallSiteData *frame = JS_GetOpaque(site, JS_CLASS_CALL_SITE);
        constructing = constructing && frame && JS_IsObject(frame->func) && JS_IsConstructor(cx, frame->func) &&
                 JS_OrdinaryIsInstanceOf(cx, argv[0], frame->func) > 0;
        if (frame && !constructing && JS_IsString(frame->filename)) {
            JSAtom file = JS_ValueToAtom(cx, frame->filename);
            uint64_t at = file == script_filename ? host_locate(frame->line_num, frame->col_num) : 0;
            JS_FreeAtom(cx, file);
            if (at) {
                const char *name = JS_IsString(frame->func_name) ? JS_ToCString(cx, frame->func_name) : NULL;
                dbuf_printf(&text, "    at %s (script.ts:%u:%u)\n", name && *name ? name : "<anonymous>",
                            (uint32_t)(at >> 32), (uint32_t)at);
                JS_FreeCString(cx, name);
            }
        }
        JS_FreeValue(cx, site);
    }
    JSValue stack = dbuf_error(&text) ? JS_NewString(cx, "") : JS_NewStringLen(cx, (char *)text.buf, text.size);
    dbuf_free(&text);
    return stack;
}

static JSValue js_call(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    uint32_t id, line, column;
    size_t path_len, args_len;
    if (JS_ToUint32(cx, &id, argv[0]))
        return JS_EXCEPTION;
    const char *path = JS_ToCStringLen(cx, &path_len, argv[1]);
    const char *args = JS_ToCStringLen(cx, &args_len, argv[2]);
    if (path && args) {
        script_position(&line, &column);
        host_call(id, path, path_len, args, args_len, line, column);
    }
    JS_FreeCString(cx, path);
    JS_FreeCString(cx, args);
    return path && args ? JS_UNDEFINED : JS_EXCEPTION;
}

static JSValue js_sleep(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    uint32_t id;
    double ms;
    if (JS_ToUint32(cx, &id, argv[0]) || JS_ToFloat64(cx, &ms, argv[1]))
        return JS_EXCEPTION;
    host_sleep(id, ms);
    return JS_UNDEFINED;
}

static JSValue js_cancel(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    uint32_t id;
    if (JS_ToUint32(cx, &id, argv[0]))
        return JS_EXCEPTION;
    host_cancel(id);
    return JS_UNDEFINED;
}

static JSValue js_message(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    size_t channel_len, text_len;
    JSValue answer = JS_EXCEPTION;
    const char *channel = JS_ToCStringLen(cx, &channel_len, argv[0]);
    const char *text = JS_ToCStringLen(cx, &text_len, argv[1]);
    if (channel && text) {
        int32_t reply_len = host_message(channel, channel_len, text, text_len);
        if (reply_len < 0) {
            answer = JS_UNDEFINED;
        } else {
            char *reply = js_malloc(cx, reply_len + 1);
            if (reply) {
                host_take(reply);
                answer = JS_NewStringLen(cx, reply, reply_len);
                js_free(cx, reply);
            }
        }
    }
    JS_FreeCString(cx, channel);
    JS_FreeCString(cx, text);
    return answer;
}

// Line and column of the innermost script frame, as written.
static JSValue js_position(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc, (void)argv;
    uint32_t line, column;
    script_position(&line, &column);
    uint64_t at = line ? host_locate(line, column) : 0;
    char text[32];
    snprintf(text, sizeof text, "%u:%u", (uint32_t)(at >> 32), (uint32_t)at);
    return at ? JS_NewString(cx, text) : JS_UNDEFINED;
}

// True for values that JSON.stringify renders without loss. They need no careful conversion.
static bool is_plain(JSContext *cx, JSValueConst value, int depth) {
    switch (JS_VALUE_GET_NORM_TAG(value)) {
    case JS_TAG_INT:
    case JS_TAG_BOOL:
    case JS_TAG_NULL:
    case JS_TAG_STRING:
    case JS_TAG_STRING_ROPE:
        return true;
    case JS_TAG_FLOAT64:
        return isfinite(JS_VALUE_GET_FLOAT64(value));
    case JS_TAG_OBJECT:
        break;
    default:
        return false;
    }
    if (depth <= 0)
        return false;
    JSObject *p = JS_VALUE_GET_OBJ(value);
    if (p->class_id == JS_CLASS_ARRAY) {
        if (p->shape->proto != JS_VALUE_GET_OBJ(cx->class_proto[JS_CLASS_ARRAY]))
            return false;
        // One property is `length`; frozen arrays also store their elements as properties.
        JSShapeProperty *prs = get_shape_prop(p->shape);
        uint32_t count = p->fast_array ? p->u.array.count : 0;
        for (uint32_t i = 0; i < count; i++)
            if (!is_plain(cx, p->u.array.u.values[i], depth - 1))
                return false;
        for (int i = 1; i < p->shape->prop_count; i++, count++) {
            if (!__JS_AtomIsTaggedInt(prs[i].atom) || (prs[i].flags & JS_PROP_TMASK) != JS_PROP_NORMAL)
                return false;
            if (!is_plain(cx, p->prop[i].u.value, depth - 1))
                return false;
        }
        return JS_VALUE_GET_TAG(p->prop[0].u.value) == JS_TAG_INT &&
               (uint32_t)JS_VALUE_GET_INT(p->prop[0].u.value) == count;
    }
    if (p->class_id != JS_CLASS_OBJECT || p->is_exotic)
        return false;
    if (p->shape->proto != JS_VALUE_GET_OBJ(cx->class_proto[JS_CLASS_OBJECT]))
        return false;
    JSShapeProperty *prs = get_shape_prop(p->shape);
    for (int i = 0; i < p->shape->prop_count; i++, prs++) {
        if (prs->atom == JS_ATOM_NULL)
            continue;
        if ((prs->flags & JS_PROP_TMASK) != JS_PROP_NORMAL || !(prs->flags & JS_PROP_ENUMERABLE))
            return false;
        if (JS_AtomGetKind(cx, prs->atom) != JS_ATOM_KIND_STRING || prs->atom == JS_ATOM_toJSON)
            return false;
        if (!is_plain(cx, p->prop[i].u.value, depth - 1))
            return false;
    }
    return true;
}

static JSValue js_is_plain(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    int32_t depth;
    if (JS_ToInt32(cx, &depth, argv[1]))
        return JS_EXCEPTION;
    return JS_NewBool(cx, is_plain(cx, argv[0], depth));
}

// Writes a string that needs no escapes in JSON; false for any other.
static bool write_simple_text(DynBuf *out, JSString *text) {
    if (text->is_wide_char)
        return false;
    const uint8_t *chars = str8(text);
    for (uint32_t i = 0; i < text->len; i++)
        if (chars[i] < ' ' || chars[i] > '~' || chars[i] == '"' || chars[i] == '\\')
            return false;
    dbuf_putc(out, '"');
    dbuf_put(out, chars, text->len);
    dbuf_putc(out, '"');
    return true;
}

// Writes a plain value as JSON.stringify would, in one walk, if it is simple: no text that needs
// escapes, no numeric property names. Returns false for any other value; the output is then
// invalid.
static bool write_simple(JSContext *cx, DynBuf *out, JSValueConst value, int depth, size_t max_size) {
    char digits[16];
    switch (JS_VALUE_GET_NORM_TAG(value)) {
    case JS_TAG_INT:
        dbuf_put(out, digits, i32toa(digits, JS_VALUE_GET_INT(value)));
        return true;
    case JS_TAG_BOOL:
        dbuf_putstr(out, JS_VALUE_GET_BOOL(value) ? "true" : "false");
        return true;
    case JS_TAG_NULL:
        dbuf_putstr(out, "null");
        return true;
    case JS_TAG_STRING:
        return write_simple_text(out, JS_VALUE_GET_STRING(value));
    case JS_TAG_OBJECT:
        break;
    default:
        return false;
    }
    // The output may exceed the limit by one string: the caller checks the size at the end.
    if (depth <= 0 || out->size > max_size)
        return false;
    JSObject *p = JS_VALUE_GET_OBJ(value);
    if (p->class_id == JS_CLASS_ARRAY) {
        // Frozen arrays store their elements as properties: those are not simple.
        if (!p->fast_array || p->shape->prop_count != 1 ||
            p->shape->proto != JS_VALUE_GET_OBJ(cx->class_proto[JS_CLASS_ARRAY]) ||
            JS_VALUE_GET_TAG(p->prop[0].u.value) != JS_TAG_INT ||
            (uint32_t)JS_VALUE_GET_INT(p->prop[0].u.value) != p->u.array.count)
            return false;
        dbuf_putc(out, '[');
        for (uint32_t i = 0; i < p->u.array.count; i++) {
            if (i)
                dbuf_putc(out, ',');
            if (!write_simple(cx, out, p->u.array.u.values[i], depth - 1, max_size))
                return false;
        }
        dbuf_putc(out, ']');
        return true;
    }
    if (p->class_id != JS_CLASS_OBJECT || p->is_exotic ||
        p->shape->proto != JS_VALUE_GET_OBJ(cx->class_proto[JS_CLASS_OBJECT]))
        return false;
    dbuf_putc(out, '{');
    JSShapeProperty *prs = get_shape_prop(p->shape);
    bool first = true;
    for (int i = 0; i < p->shape->prop_count; i++, prs++) {
        if (prs->atom == JS_ATOM_NULL)
            continue;
        if ((prs->flags & JS_PROP_TMASK) != JS_PROP_NORMAL || !(prs->flags & JS_PROP_ENUMERABLE))
            return false;
        if (__JS_AtomIsTaggedInt(prs->atom) || JS_AtomGetKind(cx, prs->atom) != JS_ATOM_KIND_STRING ||
            prs->atom == JS_ATOM_toJSON)
            return false;
        if (!first)
            dbuf_putc(out, ',');
        first = false;
        if (!write_simple_text(out, rt->atom_array[prs->atom]))
            return false;
        dbuf_putc(out, ':');
        if (!write_simple(cx, out, p->prop[i].u.value, depth - 1, max_size))
            return false;
    }
    dbuf_putc(out, '}');
    return true;
}

// Returns a simple value as JSON; undefined for any other value, or if the JSON exceeds the limit.
static JSValue js_fast_json(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    int32_t depth, max_size;
    if (JS_ToInt32(cx, &depth, argv[1]) || JS_ToInt32(cx, &max_size, argv[2]))
        return JS_EXCEPTION;
    DynBuf out;
    js_dbuf_init(cx, &out);
    bool simple = write_simple(cx, &out, argv[0], depth, max_size) && !dbuf_error(&out) && out.size <= (size_t)max_size;
    JSValue text = simple ? JS_NewStringLen(cx, (char *)out.buf, out.size) : JS_UNDEFINED;
    dbuf_free(&out);
    return text;
}

// Calls the host with simple arguments; returns false, without a call, if they are not simple.
static JSValue js_call_fast(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    uint32_t id, line, column;
    int32_t depth, max_size;
    if (JS_ToUint32(cx, &id, argv[0]) || JS_ToInt32(cx, &depth, argv[3]) || JS_ToInt32(cx, &max_size, argv[4]))
        return JS_EXCEPTION;
    DynBuf args;
    js_dbuf_init(cx, &args);
    bool simple = write_simple(cx, &args, argv[2], depth, max_size) && !dbuf_error(&args) && args.size <= (size_t)max_size;
    size_t path_len;
    const char *path = simple ? JS_ToCStringLen(cx, &path_len, argv[1]) : NULL;
    if (path) {
        script_position(&line, &column);
        host_call(id, path, path_len, (char *)args.buf, args.size, line, column);
    }
    JS_FreeCString(cx, path);
    dbuf_free(&args);
    return simple && !path ? JS_EXCEPTION : JS_NewBool(cx, simple);
}

// Freezes a newly parsed JSON value recursively.
static int deep_freeze(JSContext *cx, JSValueConst value) {
    if (JS_VALUE_GET_TAG(value) != JS_TAG_OBJECT)
        return 0;
    if (js_check_stack_overflow(rt, 0)) {
        JS_ThrowRangeError(cx, "the value is nested too deeply");
        return -1;
    }
    JSObject *p = JS_VALUE_GET_OBJ(value);
    if (p->fast_array) {
        for (uint32_t i = 0; i < p->u.array.count; i++)
            if (deep_freeze(cx, p->u.array.u.values[i]))
                return -1;
    } else {
        for (int i = 0; i < p->shape->prop_count; i++)
            if ((get_shape_prop(p->shape)[i].flags & JS_PROP_TMASK) == JS_PROP_NORMAL)
                if (deep_freeze(cx, p->prop[i].u.value))
                    return -1;
    }
    return JS_FreezeObject(cx, value) < 0 ? -1 : 0;
}

static JSValue parse_frozen(const char *text, size_t len) {
    JSValue value = JS_ParseJSON(ctx, text, len, "<value>");
    if (!JS_IsException(value) && deep_freeze(ctx, value)) {
        JS_FreeValue(ctx, value);
        return JS_EXCEPTION;
    }
    return value;
}

static JSValue js_parse_frozen(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    size_t len;
    const char *text = JS_ToCStringLen(cx, &len, argv[0]);
    if (!text)
        return JS_EXCEPTION;
    JSValue value = parse_frozen(text, len);
    JS_FreeCString(cx, text);
    return value;
}

// Returns the UTF-8 bytes of a text without lone surrogates.
static JSValue js_utf8_encode(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    size_t len;
    const char *text = JS_ToCStringLen(cx, &len, argv[0]);
    if (!text)
        return JS_EXCEPTION;
    JSValue bytes = JS_NewUint8ArrayCopy(cx, (const uint8_t *)text, len);
    JS_FreeCString(cx, text);
    return bytes;
}

// Returns the length of the UTF-8 sequence at `bytes`; 0 if it is not valid or not complete.
static size_t utf8_sequence(const uint8_t *bytes, size_t len) {
    uint8_t first = bytes[0];
    if (first < 0x80)
        return 1;
    size_t count = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
    if (count == 0 || count > len)
        return 0;
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (bytes[1] < low || bytes[1] > high)
        return 0;
    for (size_t i = 2; i < count; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    return count;
}

// Returns the text of valid UTF-8 in a Uint8Array; undefined if it is not valid.
static JSValue js_utf8_decode(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    size_t len;
    const uint8_t *bytes = JS_GetUint8Array(cx, &len, argv[0]);
    if (!bytes)
        return JS_EXCEPTION;
    for (size_t at = 0, step; at < len; at += step)
        if ((step = utf8_sequence(bytes + at, len - at)) == 0)
            return JS_UNDEFINED;
    return JS_NewStringLen(cx, (const char *)bytes, len);
}

// Ends the script successfully, with an error that no catch or finally of the script can see.
static JSValue js_exit(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc, (void)argv;
    exited = true;
    JSValue stop = JS_NewError(cx);
    JS_Throw(cx, js_dup(stop));
    JS_SetUncatchableError(cx, stop);
    JS_FreeValue(cx, stop);
    return JS_EXCEPTION;
}

static JSValue js_finish(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv) {
    (void)this_val, (void)argc;
    uint32_t kind;
    size_t len = 0;
    if (finished)
        return JS_UNDEFINED;
    if (JS_ToUint32(cx, &kind, argv[0]))
        return JS_EXCEPTION;
    const char *text = JS_ToCStringLen(cx, &len, argv[1]);
    if (!text)
        return JS_EXCEPTION;
    finished = true;
    host_finish(compiling ? FINISH_SYNTAX : kind, text, len);
    JS_FreeCString(cx, text);
    return JS_UNDEFINED;
}

// Results are frozen, so the in-place methods fail. The message says what to write instead.

enum { M_SORT, M_REVERSE, M_PUSH, M_POP, M_SHIFT, M_UNSHIFT, M_SPLICE, M_FILL, M_COPY_WITHIN };

static const struct {
    const char *name;
    int length;
    const char *fix;
} mutators[] = {
    [M_SORT] = {"sort", 1, "use x.toSorted(compare) or [...x].sort(compare)"},
    [M_REVERSE] = {"reverse", 0, "use x.toReversed() or [...x].reverse()"},
    [M_PUSH] = {"push", 1, "use [...x, item], or copy it first: const copy = [...x]"},
    [M_POP] = {"pop", 0, "use x.at(-1), or copy it first: const copy = [...x]"},
    [M_SHIFT] = {"shift", 0, "use x[0] and x.slice(1), or copy it first: const copy = [...x]"},
    [M_UNSHIFT] = {"unshift", 1, "use [item, ...x], or copy it first: const copy = [...x]"},
    [M_SPLICE] = {"splice", 2, "use x.toSpliced(...) or copy it first: const copy = [...x]"},
    [M_FILL] = {"fill", 1, "copy it first: [...x].fill(value)"},
    [M_COPY_WITHIN] = {"copyWithin", 2, "copy it first: [...x].copyWithin(...)"},
};

// Whether an array is frozen: its length, always the first property, is read-only.
static bool is_frozen_array(JSValueConst value) {
    if (!JS_IsArray(value) || JS_VALUE_GET_OBJ(value)->class_id != JS_CLASS_ARRAY)
        return false;
    JSObject *p = JS_VALUE_GET_OBJ(value);
    return !p->extensible && !(get_shape_prop(p->shape)[0].flags & JS_PROP_WRITABLE);
}

// Fails at once on a frozen array, not when the first element would move: whether a script fails
// must not depend on the data.
static JSValue js_mutate(JSContext *cx, JSValueConst this_val, int argc, JSValueConst *argv, int magic) {
    if (is_frozen_array(this_val))
        return JS_ThrowTypeError(cx, "%s() cannot change a frozen array (tool results are frozen): %s",
                                 mutators[magic].name, mutators[magic].fix);
    switch (magic) {
    case M_SORT: return js_array_sort(cx, this_val, argc, argv);
    case M_REVERSE: return js_array_reverse(cx, this_val, argc, argv);
    case M_PUSH: return js_array_push(cx, this_val, argc, argv, 0);
    case M_POP: return js_array_pop(cx, this_val, argc, argv, 0);
    case M_SHIFT: return js_array_pop(cx, this_val, argc, argv, 1);
    case M_UNSHIFT: return js_array_push(cx, this_val, argc, argv, 1);
    case M_SPLICE: return js_array_slice(cx, this_val, argc, argv, 1);
    case M_FILL: return js_array_fill(cx, this_val, argc, argv);
    default: return js_array_copyWithin(cx, this_val, argc, argv);
    }
}

// Reports an error to build.rs and traps. Only called while the snapshot is made.
static void fail_hard(void) {
    if (ctx) {
        const char *text = JS_ToCString(ctx, JS_GetException(ctx));
        if (text)
            host_message("boot", 4, text, strlen(text));
    }
    __builtin_trap();
}

static void add(JSValueConst object, const char *name, JSCFunction *function, int length) {
    if (JS_SetPropertyStr(ctx, object, name, JS_NewCFunction(ctx, function, name, length)) < 0)
        fail_hard();
}

static void on_rejection(JSContext *cx, JSValueConst promise, JSValueConst reason, bool handled, void *opaque) {
    (void)opaque;
    if (finished)
        return;
    JSValueConst args[] = {promise, reason, handled ? JS_TRUE : JS_FALSE};
    JSValue r = JS_Call(cx, hook_rejection, JS_UNDEFINED, 3, args);
    if (JS_IsException(r))
        JS_FreeValue(cx, JS_GetException(cx));
    JS_FreeValue(cx, r);
}

// Allocates the free blocks of the heap, so that later allocations are adjacent in fresh memory.
// Called after the library, because a script writes to objects of the prelude with each call and
// seldom to those of the library, and wasmtime restores at most 32 separate ranges of pages of an
// instance by copying; and at the end, so that a script does not write to a page of the snapshot for
// every block.
static void fill_free_blocks(void) {
    for (int i = 0; i < JS_ARENA_BLOCK_SIZE_COUNT; i++)
        while (!list_empty(&rt->arena_state.free_arena_list[i]))
            if (!js_malloc_rt(rt, arena_block_sizes[i] - sizeof(JSMallocBlockHeader)))
                fail_hard();
    static const size_t sizes[] = {8192, 2048, 1200, 512, 128, 32, 8};
    // Reserves memory for an ordinary script, so that it need not grow the memory.
    char *top = malloc(1 << 20);
    free(top);
    for (int i = 0; i < (int)countof(sizes); i++)
        while ((char *)malloc(sizes[i]) < top)
            ;
}

// Evaluates a source to a function, and returns what the function returns.
static JSValue run_source(const unsigned char *source, size_t len, const char *name, int argc, JSValueConst *argv) {
    JSValue function =
        JS_Eval(ctx, (const char *)source, len, name, JS_EVAL_TYPE_GLOBAL | JS_EVAL_FLAG_STRICT);
    if (JS_IsException(function))
        fail_hard();
    JSValue result = JS_Call(ctx, function, JS_UNDEFINED, argc, argv);
    JS_FreeValue(ctx, function);
    if (JS_IsException(result))
        fail_hard();
    return result;
}

EXPORT(init) void guest_init(void) {
    rt = JS_NewRuntime2(&heap, NULL);
    if (!rt)
        fail_hard();
    ctx = JS_NewContext(rt);
    if (!ctx)
        fail_hard();
    JS_SetCanBlock(rt, false);
    JS_SetMaxStackSize(rt, 512 * 1024);
    script_filename = JS_NewAtom(ctx, "script.ts");

    JSValue array_proto = JS_GetClassProto(ctx, JS_CLASS_ARRAY);
    for (int i = 0; i < (int)countof(mutators); i++)
        JS_DefinePropertyValueStr(ctx, array_proto, mutators[i].name,
                                  JS_NewCFunctionMagic(ctx, js_mutate, mutators[i].name, mutators[i].length,
                                                       JS_CFUNC_generic_magic, i),
                                  JS_PROP_WRITABLE | JS_PROP_CONFIGURABLE);
    JS_FreeValue(ctx, array_proto);

    JSValue host = JS_NewObject(ctx);
    add(host, "call", js_call, 3);
    add(host, "callFast", js_call_fast, 5);
    add(host, "sleep", js_sleep, 2);
    add(host, "cancel", js_cancel, 1);
    add(host, "message", js_message, 2);
    add(host, "position", js_position, 0);
    add(host, "isPlain", js_is_plain, 2);
    add(host, "fastJson", js_fast_json, 3);
    add(host, "parseFrozen", js_parse_frozen, 1);
    add(host, "utf8Encode", js_utf8_encode, 1);
    add(host, "utf8Decode", js_utf8_decode, 1);
    add(host, "exit", js_exit, 0);
    add(host, "finish", js_finish, 2);

    JSValueConst args[] = {host, JS_UNDEFINED};
    JSValue library = run_source(library_source, sizeof library_source - 1, "library.js", 1, args);
    JS_RunGC(rt);
    fill_free_blocks();
    args[1] = library;
    JSValue hooks = run_source(prelude_source, sizeof prelude_source - 1, "prelude.js", 2, args);
    hook_run = JS_GetPropertyStr(ctx, hooks, "run");
    hook_settle = JS_GetPropertyStr(ctx, hooks, "settle");
    hook_fail = JS_GetPropertyStr(ctx, hooks, "fail");
    hook_rejection = JS_GetPropertyStr(ctx, hooks, "rejection");
    JS_FreeValue(ctx, hooks);
    JS_FreeValue(ctx, library);
    JS_FreeValue(ctx, host);

    ctx->error_prepare_stack = JS_NewCFunction(ctx, prepare_stack, "", 2);
    JS_SetHostPromiseRejectionTracker(rt, on_rejection, NULL);
    ctx->eval_internal = NULL;
    JS_RunGC(rt);
    fill_free_blocks();
    heap_base = heap_peak = rt->malloc_state.malloc_size;
}

// Reports an uncaught exception to the host, unless the script has finished.
static void report_exception(void) {
    JSValue error = JS_GetException(ctx);
    if (finished) {
        JS_FreeValue(ctx, error);
        return;
    }
    if (exited) {
        finished = true;
        host_finish(FINISH_EXIT, "", 0);
    } else {
        JS_ResetUncatchableError(ctx);
        JSValueConst args[] = {error};
        JSValue reported = JS_Call(ctx, hook_fail, JS_UNDEFINED, 1, args);
        if (JS_IsException(reported) && !finished) {
            finished = true;
            host_finish(FINISH_MEMORY, "", 0);
        }
        JS_FreeValue(ctx, reported);
    }
    JS_FreeValue(ctx, error);
}

static int run_jobs(void) {
    JSContext *job_ctx;
    while (!finished && !exited) {
        int ran = JS_ExecutePendingJob(rt, &job_ctx);
        if (ran < 0)
            report_exception();
        if (ran <= 0)
            break;
    }
    if (exited && !finished) {
        finished = true;
        host_finish(FINISH_EXIT, "", 0);
    }
    return finished ? STATE_FINISHED : STATE_WAITING;
}

// Compiles and starts the script: an expression whose value is an async function.
EXPORT(start) int guest_start(char *source, size_t len, uint64_t seed, size_t memory_limit, size_t stack_limit) {
    JS_UpdateStackTop(rt);
    JS_SetMaxStackSize(rt, stack_limit);
    JS_SetMemoryLimit(rt, heap_base + memory_limit);
    // A garbage collection writes to every object of the snapshot, which copies all of its pages.
    // It is delayed until the script has allocated much memory.
    JS_SetGCThreshold(rt, heap_base + (memory_limit / 2 < (8 << 20) ? memory_limit / 2 : 8 << 20));
    ctx->random_state = seed ? seed : 1;
    source[len] = 0;

    ctx->eval_internal = __JS_EvalInternal;
    JSValue function = JS_Eval(ctx, source, len, "script.ts", JS_EVAL_TYPE_GLOBAL | JS_EVAL_FLAG_STRICT);
    ctx->eval_internal = NULL;
    release(source);
    if (JS_IsException(function)) {
        compiling = true;
        report_exception();
        return run_jobs();
    }
    JSValueConst args[] = {function};
    JSValue started = JS_Call(ctx, hook_run, JS_UNDEFINED, 1, args);
    JS_FreeValue(ctx, function);
    if (JS_IsException(started))
        report_exception();
    JS_FreeValue(ctx, started);
    return run_jobs();
}

// Settles a call or fires a timer, then runs jobs until the queue is empty.
EXPORT(settle) int guest_settle(uint32_t id, int ok, char *text, size_t len) {
    JS_UpdateStackTop(rt);
    text[len] = 0;
    JSValue payload = parse_frozen(text, len);
    release(text);
    if (JS_IsException(payload)) {
        // The value does not fit into memory: the call fails with that error, which the script can
        // catch.
        payload = JS_GetException(ctx);
        ok = SETTLE_THROW;
    }
    JSValue args[] = {JS_NewUint32(ctx, id), JS_NewInt32(ctx, ok), payload};
    JSValue r = JS_Call(ctx, hook_settle, JS_UNDEFINED, 3, (JSValueConst *)args);
    JS_FreeValue(ctx, payload);
    if (JS_IsException(r))
        report_exception();
    JS_FreeValue(ctx, r);
    return run_jobs();
}
