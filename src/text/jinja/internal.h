/* What the files of the Jinja engine share: arena, values, syntax tree, the running state, the built-in tables.
 *
 * lex -> parse -> scope (names become slots) -> exec/eval. Values live in the arena of one rendering and are freed with
 * it; constants live in the template's arena. Functions return a status and write their result through the last
 * pointer.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_JINJA_INTERNAL_H
#define MN_TEXT_JINJA_INTERNAL_H

#include "text/jinja/jinja.h"

/* ---- the budget: budget.c ---- */

typedef struct jinja_block jinja_block;

/* What a compilation or a rendering may use. A step is at most about 50 ns of work; longer work is charged more steps,
 * before or while it is done. tests/layers/loops.py rejects a loop that charges no steps, unless a comment that begins
 * with "bounded:" or "charged:" gives the reason. */
typedef struct jinja_arena {
    jinja_block *blocks;
    size_t held, limit; /* bytes of memory held now, blocks and buffers, and how many may be */
    int64_t steps;      /* left */
    int line;           /* of the template that is being processed, for messages */
} jinja_arena;

mn_status jinja_out_of_steps(jinja_arena *arena);
/* Takes n steps off the budget; MN_E_FULL when fewer are left. */
static inline mn_status jinja_charge_steps(jinja_arena *arena, size_t n) {
    if (n > (uint64_t)arena->steps) return jinja_out_of_steps(arena);
    arena->steps -= (int64_t)n;
    return MN_OK;
}
/* *out = n bytes, 16-byte aligned, not cleared, freed with the arena. MN_E_NOMEM; MN_E_FULL beyond the limit. */
mn_status jinja_alloc(jinja_arena *arena, size_t n, void *out);
/* As mem_grow, within the memory limit; freed by jinja_free. */
mn_status jinja_grow(jinja_arena *arena, void *block, size_t *capacity, size_t need, size_t size);
void jinja_free(jinja_arena *arena, void *block, size_t capacity, size_t size);
void jinja_arena_clear(jinja_arena *arena);

/* ---- values ---- */

typedef enum jkind {
    J_MISSING, /* no value at all: an argument not given, a variable not yet set */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STRING,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_RANGE,
    J_VIEW,     /* dict.keys(), .values(), .items() */
    J_ITERATOR, /* what Python calls a generator or iterator: read once */
    J_FUNCTION,
    J_METHOD,
    J_MACRO,
    J_NAMESPACE,
    J_LOOP,
    J_CYCLER,
    J_JOINER
} jkind;

typedef struct jrun jrun;
typedef struct jnode jnode;
typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jiter jiter;
typedef struct jloop jloop;
typedef struct jscope jscope;
typedef struct jbuiltin jbuiltin;

typedef struct jstring {
    const char *data; /* UTF-8, not zero-terminated */
    size_t n;         /* bytes */
    size_t points;    /* code points */
} jstring;

typedef struct jundefined jundefined;
typedef struct jrange {
    int64_t start, stop, step, n;
} jrange;
typedef struct jview jview;
typedef struct jmethod jmethod;
typedef struct jmacro jmacro;
typedef struct jcycler jcycler;
typedef struct jjoiner jjoiner;

typedef struct jvalue {
    uint8_t kind;
    bool markup; /* J_STRING: text already escaped for HTML, as markupsafe.Markup */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const jstring *string;
        jlist *list; /* J_LIST, J_TUPLE */
        jdict *dict; /* J_DICT, J_NAMESPACE */
        const jundefined *undefined;
        const jrange *range;
        const jview *view;
        jiter *iterator;
        const jbuiltin *function;
        const jmethod *method;
        const jmacro *macro;
        jloop *loop;
        jcycler *cycler;
        jjoiner *joiner;
        const void *pointer;
    };
} jvalue;

struct jlist {
    jvalue *items;
    size_t n, capacity;
    bool group; /* a tuple of groupby: has .grouper and .list */
};

typedef struct jpair {
    jvalue key, value;
    uint64_t hash;
} jpair;

struct jdict {
    jpair *items; /* in order of insertion */
    size_t n, capacity;
    uint32_t *slots; /* open addressing over items, index + 1; NULL while small */
    size_t n_slots;
};

struct jundefined {
    const char *hint;  /* the whole message, or NULL: made from name and owner */
    jvalue name;       /* the missing variable, attribute or index */
    const char *owner; /* type of the object that lacks it; NULL for a variable */
};

typedef enum jview_kind { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS } jview_kind;

struct jview {
    jdict *dict;
    jview_kind kind;
};

struct jmethod {
    const jbuiltin *builtin;
    jvalue self;
};

struct jmacro {
    const jnode *node; /* N_MACRO or N_CALL_BLOCK */
    jscope *closure;
};

struct jcycler {
    jlist *items;
    size_t at;
};

struct jjoiner {
    jvalue separator;
    bool used;
};

typedef struct jnamed {
    const jstring *name;
    jvalue value;
} jnamed;

typedef struct jargs {
    const jvalue *items;
    size_t n;
    const jnamed *named;
    size_t n_named;
} jargs;

enum { JINJA_PARAMETERS = 6 };

/* One call of a built-in. */
typedef struct jcall {
    jvalue self;                  /* a filter's or test's value, a method's object */
    jvalue arg[JINJA_PARAMETERS]; /* bound to the signature; J_MISSING where nothing was given */
    jargs given;                  /* as the caller wrote them, for the variadic ones */
} jcall;

enum { JB_POSITIONAL = 1, JB_VARIADIC = 2, JB_MUTATES = 4 };

struct jbuiltin {
    const char *name;
    const char *parameters; /* "sep,maxsplit" */
    int required;           /* how many of them must be given */
    int flags; /* JB_POSITIONAL: no keywords; JB_VARIADIC: reads call.given; JB_MUTATES: the sandbox refuses
                  it */
    mn_status (*call)(jrun *, const jcall *, jvalue *);
};

/* An iterator in Python's sense. `next` sets *more to false at the end. */
struct jiter {
    mn_status (*next)(jrun *, jiter *, jvalue *item, bool *more);
    jvalue source;           /* what is iterated over */
    size_t at;               /* index, or byte offset in a string */
    jiter *inner;            /* generators: where their items come from */
    const jbuiltin *builtin; /* map, select, ...: the filter or test applied */
    jargs args;              /* and its arguments */
    jvalue attribute, fallback;
    jdict *seen; /* unique */
    bool ready, negate, flag;
    int64_t count;
    const jnode *node; /* the filter of a for loop */
    jscope *scope;
    const char *type; /* Python's name of the type, for messages */
};

struct jloop {
    jiter *iter;
    jvalue source;
    jvalue before, current, after; /* J_MISSING: none */
    jvalue changed;                /* J_MISSING or a tuple */
    int64_t index0, length;        /* length < 0: not known yet */
    int depth0;
    const jnode *node; /* of a recursive loop */
    jscope *scope;
};

static inline jvalue j_none(void) {
    return (jvalue){.kind = J_NONE};
}
static inline jvalue j_bool(bool x) {
    return (jvalue){.kind = J_BOOL, .boolean = x};
}
static inline jvalue j_int(int64_t x) {
    return (jvalue){.kind = J_INT, .integer = x};
}
static inline jvalue j_float(double x) {
    return (jvalue){.kind = J_FLOAT, .real = x};
}
static inline jvalue j_string(const jstring *s, bool markup) {
    return (jvalue){.kind = J_STRING, .markup = markup, .string = s};
}
static inline jvalue j_list(jlist *x) {
    return (jvalue){.kind = J_LIST, .list = x};
}
static inline jvalue j_tuple(jlist *x) {
    return (jvalue){.kind = J_TUPLE, .list = x};
}
static inline jvalue j_dict(jdict *x) {
    return (jvalue){.kind = J_DICT, .dict = x};
}
static inline jvalue j_iterator(jiter *x) {
    return (jvalue){.kind = J_ITERATOR, .iterator = x};
}
static inline bool j_given(jvalue v) {
    return v.kind != J_MISSING;
}
static inline bool j_is_integer(jvalue v) {
    return v.kind == J_INT || v.kind == J_BOOL;
} /* bool is an int in Python */
static inline bool j_is_number(jvalue v) {
    return v.kind == J_INT || v.kind == J_BOOL || v.kind == J_FLOAT;
}
static inline int64_t j_integer(jvalue v) {
    return v.kind == J_BOOL ? v.boolean : v.integer;
}
static inline double j_real(jvalue v) {
    return v.kind == J_FLOAT ? v.real : (double)j_integer(v);
}

/* ---- syntax tree ---- */

typedef enum jnode_kind {
    /* expressions */
    N_CONST, /* value */
    N_NAME,  /* text; hops, slot */
    N_TUPLE, /* items */
    N_LIST,  /* items */
    N_DICT,  /* items: key, value, key, value, ... */
    N_COND,  /* a if b else c; c may be NULL */
    N_CHAIN, /* a (NULL in filter and set blocks), then items, the steps that are applied to it from left to right */
    /* steps of chains, each applied to the value v before it */
    N_ATTRIBUTE, /* v.text */
    N_ITEM,      /* v[b] */
    N_SLICE,     /* v[items[0] : items[1] : items[2]], absent ones NULL */
    N_CALL,      /* v(arguments) */
    N_FILTER,    /* v|builtin(arguments); text is the name */
    N_TEST,      /* v is builtin(arguments) */
    N_NOT,       /* not v */
    N_NEGATE,    /* -v */
    N_PLUS,      /* +v */
    N_BINARY,    /* v op b */
    N_CONCAT,    /* v ~ items[0] ~ items[1] ~ ... */
    N_COMPARE,   /* v, then items, each N_OPERAND: op a */
    N_OPERAND,
    N_AND, /* v and b */
    N_OR,  /* v or b */
    /* statements */
    N_TEXT,         /* text */
    N_PRINT,        /* items */
    N_IF,           /* a, body, items: elif nodes (N_IF), other: else */
    N_FOR,          /* a: target, b: iterable, c: filter or NULL, body, other; flag: recursive; frames */
    N_SET,          /* a = b */
    N_SET_BLOCK,    /* a, b: a chain of filters or NULL, body */
    N_MACRO,        /* text, parameters, body */
    N_CALL_BLOCK,   /* a: the call or NULL for `generation`, parameters, body */
    N_FILTER_BLOCK, /* a: a chain of filters, body */
    N_WITH,         /* items: target, value, ...; body */
    N_SCOPE,        /* body */
    N_BREAK,
    N_CONTINUE,
    N_UNSUPPORTED, /* text: what; fails when reached */
    N_MEMBER       /* a namespace member as a target: text.name2 */
} jnode_kind;

typedef struct jnodes {
    jnode **items;
    size_t n;
} jnodes;

typedef struct jkeyword {
    const jstring *name;
    jnode *value;
} jkeyword;

/* How a slot is filled when its scope is entered. */
typedef enum jload_kind { JLOAD_NOTHING, JLOAD_PARAMETER, JLOAD_CONTEXT, JLOAD_OUTER } jload_kind;

typedef struct jload {
    const jstring *name;
    jload_kind kind;
    int hops, slot; /* JLOAD_OUTER: its place, counted from this scope */
} jload;

typedef struct jframe {
    jload *loads; /* one for each slot */
    size_t n;
} jframe;

typedef struct jarguments {
    jnodes positional;
    jkeyword *named;
    size_t n_named;
    jnode *star, *double_star;
} jarguments;

typedef struct jparameter {
    const jstring *name;
    jnode *fallback; /* or NULL */
    int slot;
} jparameter;

typedef struct jparameters {
    jparameter *items;
    size_t n;
    bool uses_caller, uses_kwargs, uses_varargs; /* the body mentions the special name */
    bool explicit_caller;
    int caller, kwargs, varargs; /* slots */
} jparameters;

struct jnode {
    jnode_kind kind;
    int op; /* N_BINARY, N_OPERAND: the operator's token */
    int line;
    bool flag;
    int hops, slot;
    jvalue value;
    const jstring *text, *member;
    jnode *a, *b, *c;
    jnodes items, body, other;
    const jbuiltin *builtin;
    jarguments *arguments;
    jparameters *parameters;
    jframe *frame, *frame2, *frame3; /* body; N_FOR: else, filter */
};

/* Operators as tokens: one or two characters. */
#define JOP2(a, b) ((a) << 8 | (b))
enum {
    JOP_EQ = JOP2('=', '='),
    JOP_NE = JOP2('!', '='),
    JOP_LE = JOP2('<', '='),
    JOP_GE = JOP2('>', '='),
    JOP_FLOOR = JOP2('/', '/'),
    JOP_POWER = JOP2('*', '*'),
    JOP_IN = JOP2('i', 'n'),
    JOP_NOT_IN = JOP2('n', 'i')
};

struct jinja_template {
    jinja_arena arena;
    jnodes body;
    jframe *frame;
};

/* ---- tokens ---- */

typedef enum jtoken_kind {
    T_EOF,
    T_TEXT,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_OPERATOR
} jtoken_kind;

typedef struct jtoken {
    jtoken_kind kind;
    int op;
    int line;
    const jstring *text; /* T_TEXT, T_NAME, T_STRING */
    int64_t integer;
    double real;
} jtoken;

typedef struct jtokens {
    jtoken *items;
    size_t n, capacity;
} jtokens;

/* Splits the source into tokens, the last one T_EOF. The caller frees the array with jinja_free, also on failure. */
mn_status jinja_lex(jinja_arena *arena, const char *text, size_t n, jtokens *out);
mn_status jinja_parse(jinja_arena *arena, const jtokens *tokens, jnodes *out);
/* Gives every name its slot and every scope its frame; refuses unknown filters as Jinja2 does. */
mn_status jinja_scope(jinja_template *template);
mn_status jinja_syntax_error(int line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The parser's two halves. */
typedef struct jparser {
    jinja_arena *arena;
    const jtoken *at; /* never beyond T_EOF */
    int depth;
    int loops;                            /* for loops around, within the current function */
    size_t n_caller, n_kwargs, n_varargs; /* how often these names were read so far */
    jnode **stack;                        /* nodes of the lists under construction */
    size_t n_stack, stack_capacity;
} jparser;

mn_status jparse_node(jparser *p, jnode_kind kind, jnode **out);
mn_status jparse_push(jparser *p, jnode *node);
mn_status jparse_pop(jparser *p, size_t base, jnodes *out); /* the nodes above base as a list */
bool jparse_is_op(const jparser *p, int op);
bool jparse_is_name(const jtoken *token, const char *name);
bool jparse_accept_op(jparser *p, int op);
bool jparse_accept_name(jparser *p, const char *name);
mn_status jparse_expect_op(jparser *p, int op);
mn_status jparse_expect_name(jparser *p, const jstring **out); /* any name */
mn_status jparse_unexpected(const jparser *p, const char *expected);
mn_status jparse_enter(jparser *p); /* one level deeper, or an error; leave with p->depth-- */
mn_status jparse_expression(jparser *p, jnode **out);
/* A tuple without parentheses or one expression; ends before `end` (NULL: none) when it is a name. */
mn_status jparse_tuple(jparser *p, bool conditional, const char *end, jnode **out);
mn_status jparse_filters(jparser *p, bool first_without_pipe, jnode **out); /* NULL when there is none */
mn_status jparse_primary(jparser *p, jnode **out);

/* ---- the running state ---- */

struct jscope {
    jscope *parent;
    jvalue slots[];
};

struct jrun {
    const jinja_template *template;
    jinja_arena arena;
    int64_t depth_left, output_limit;
    uint64_t seed; /* of the hashes of keys */
    const struct tm *now;
    jdict *context;
    bytes *out; /* the output, followed by every unfinished text: captured blocks, intermediate strings */
    size_t out_start;
};

/* Fails with MN_E_ARG and the line of the template. */
mn_status jinja_fail(const jrun *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
mn_status jinja_fail_undefined(jrun *r, jvalue undefined);
static inline mn_status jinja_charge(jrun *r, size_t steps) {
    return jinja_charge_steps(&r->arena, steps);
}
/* Bytes that are copied, compared, counted or hashed. */
static inline mn_status jinja_charge_bytes(jrun *r, size_t n) {
    return jinja_charge(r, n / 32 + 1);
}
/* Bytes of text that are read character by character, or searched. */
static inline mn_status jinja_charge_text(jrun *r, size_t n) {
    return jinja_charge(r, n / 4 + 1);
}
mn_status jinja_enter(jrun *r); /* one level deeper; leave with jinja_leave */
static inline void jinja_leave(jrun *r) {
    r->depth_left++;
}

/* Strings are built at the end of r->out, which is used as a stack: mark, put, cut. After a failure jinja_render
 * removes what is left there. Data to be appended must not lie in r->out. */
size_t jinja_mark(const jrun *r);
mn_status jinja_put(jrun *r, const char *data, size_t n);
mn_status jinja_put_z(jrun *r, const char *text);
mn_status jinja_put_many(jrun *r, const char *unit, size_t n, int64_t times);
mn_status jinja_printf(jrun *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));              /* for numbers and names of types: at most 199 bytes */
mn_status jinja_cut(jrun *r, size_t mark, jvalue *out); /* what was put since, as a string */

/* ---- value.c ---- */

mn_status jinja_string_wrap(jinja_arena *arena, const char *data, size_t n,
                            const jstring **out);                       /* keeps the pointer */
mn_status jinja_text(jrun *r, const char *data, size_t n, jvalue *out); /* a copied string value */
mn_status jinja_text_part(jrun *r, jvalue whole, const char *data, size_t n,
                          jvalue *out); /* shares, keeps the markup */
mn_status jinja_text_z(jrun *r, const char *data, jvalue *out);
size_t jinja_offset(const jstring *s, size_t point);   /* byte offset of a code point; the caller charges the steps */
size_t jinja_count_points(const char *data, size_t n); /* the caller charges the steps */
bool jinja_string_is(const jstring *s, const char *text);
static inline bool j_is(jvalue v, const char *text) {
    return v.kind == J_STRING && jinja_string_is(v.string, text);
}
/* Whether n bytes are the same. */
mn_status jinja_same_bytes(jrun *r, const char *a, const char *b, size_t n, bool *out);
mn_status jinja_same_text(jrun *r, const jstring *a, const jstring *b, bool *out);

mn_status jinja_list_new(jrun *r, size_t capacity, jlist **out);
mn_status jinja_list_push(jrun *r, jlist *list, jvalue item);
mn_status jinja_pair(jrun *r, jvalue first, jvalue second, jvalue *out); /* a tuple */
mn_status jinja_from_json(jrun *r, const json *value, jvalue *out);      /* shares the document's strings */
mn_status jinja_undefined(jrun *r, const char *hint, const char *owner, jvalue name, jvalue *out);

bool jinja_truth(jvalue v);
const char *jinja_type(jvalue v);      /* Python's name of the type */
const char *jinja_type_long(jvalue v); /* with its module, as messages about attributes write it */
mn_status jinja_equal(jrun *r, jvalue a, jvalue b, bool *out);
mn_status jinja_order(jrun *r, int op, jvalue a, jvalue b, bool *out); /* < > <= >= */
mn_status jinja_contains(jrun *r, jvalue container, jvalue item, bool *out);
mn_status jinja_same(jrun *r, jvalue a, jvalue b, bool *out); /* Python's `is` */
bool jinja_length(jvalue v, int64_t *out);                    /* false where Python has no len() */
mn_status jinja_length_of(jrun *r, jvalue v, int64_t *out);
int64_t jinja_range_item(const jrange *range, int64_t index);

/* ---- dict.c ---- */

mn_status jinja_dict_new(jrun *r, jdict **out);
mn_status jinja_dict_set(jrun *r, jdict *dict, jvalue key, jvalue value);      /* fails for an unhashable key */
mn_status jinja_dict_get(jrun *r, const jdict *dict, jvalue key, jvalue *out); /* J_MISSING when absent */
mn_status jinja_check_hashable(jrun *r, jvalue v);
mn_status jinja_hashable(jrun *r, jvalue v, bool *out);

/* ---- iter.c ---- */

mn_status jinja_iter(jrun *r, jvalue v, jiter **out); /* fails where Python's iter() does */
mn_status jinja_iter_new(jrun *r, mn_status (*next)(jrun *, jiter *, jvalue *, bool *), jiter **out);
mn_status jinja_iter_list(jrun *r, jlist *list, jiter **out);
mn_status jinja_next(jrun *r, jiter *it, jvalue *item, bool *more); /* generators over generators nest */
mn_status jinja_collect(jrun *r, jvalue v, jlist **out);            /* list(v): a new list */
mn_status jinja_sort(jrun *r, jvalue *items, const jvalue *keys, size_t n, bool reverse); /* stable, by keys */
/* Key of an item for a filter: its attribute path (J_NONE, J_MISSING: itself), strings lowered when fold is set. */
mn_status jinja_sort_key(jrun *r, jvalue item, jvalue attribute, jvalue fallback, bool fold, jvalue *out);

/* ---- repr.c ---- */

mn_status jinja_str(jrun *r, jvalue v, jvalue *out); /* str(v); a string is returned as it is */
mn_status jinja_put_str(jrun *r, jvalue v);
mn_status jinja_put_repr(jrun *r, jvalue v);
mn_status jinja_put_ascii(jrun *r, jvalue v); /* ascii(v) */
mn_status jinja_put_float(jrun *r, double x);
typedef struct jjson_style {
    const char *item_separator, *key_separator;
    size_t item_separator_n, key_separator_n;
    const char *indent; /* NULL: on one line */
    size_t indent_n;
    bool ascii, sort;
} jjson_style;
mn_status jinja_put_json(jrun *r, jvalue v, const jjson_style *style, int level);
mn_status jinja_put_escaped(jrun *r, const jstring *s);
mn_status jinja_escape(jrun *r, jvalue v, jvalue *out); /* as markupsafe.escape */

/* ---- text_filters.c, wrap_filters.c, pretty.c ---- */

/* Calls a method of a string. */
mn_status jinja_text_method(jrun *r, jvalue text, const char *name, const jvalue *args, size_t n, jvalue *out);
mn_status jinja_wordwrap(jrun *r, const jcall *c, jvalue *out); /* filters */
mn_status jinja_striptags(jrun *r, const jcall *c, jvalue *out);
mn_status jinja_pprint(jrun *r, const jcall *c, jvalue *out);

/* ---- format.c ---- */

mn_status jinja_percent(jrun *r, jvalue format, jvalue values, jvalue *out);
mn_status jinja_percent_call(jrun *r, jvalue format, const jargs *args, jvalue *out);
mn_status jinja_format_call(jrun *r, jvalue format, const jargs *args, jvalue *out);

/* ---- number.c ---- */

mn_status jinja_arithmetic(jrun *r, int op, jvalue a, jvalue b, jvalue *out);
mn_status jinja_negate(jrun *r, jvalue v, bool minus, jvalue *out);
mn_status jinja_add(jrun *r, jvalue a, jvalue b, jvalue *out);
/* Python's int(text, base) and float(text) without white space around it; false for text that is none, or has more than
 * 127 and 511 bytes. */
bool jinja_read_int(const jstring *s, int base, int64_t *out);
bool jinja_read_float(const jstring *s, double *out);
mn_status jinja_trimmed(jrun *r, const jstring *s,
                        jstring *out); /* without white space around it; charges the steps of parsing it */
double jinja_round(double x, int64_t digits);

/* ---- eval.c ---- */

mn_status jinja_eval(jrun *r, jscope *scope, const jnode *node, jvalue *out);
/* The first n steps of a chain on *value. */
mn_status jinja_apply_steps(jrun *r, jscope *scope, const jnode *chain, size_t n, jvalue *value);
/* A chain that ends with a call; `caller` (J_MISSING: none) is passed as one more keyword argument. */
mn_status jinja_eval_call(jrun *r, jscope *scope, const jnode *chain, jvalue caller, jvalue *out);
mn_status jinja_call(jrun *r, jvalue callee, const jargs *args, jvalue *out);
mn_status jinja_call_builtin(jrun *r, const jbuiltin *b, jvalue self, const jargs *args, jvalue *out);
mn_status jinja_attribute(jrun *r, jvalue object, jvalue name, jvalue *out); /* object.name */
mn_status jinja_item(jrun *r, jvalue object, jvalue index, jvalue *out);     /* object[index] */

/* ---- exec.c ---- */

mn_status jinja_call_macro(jrun *r, const jmacro *macro, const jargs *args, jvalue *out);
mn_status jinja_call_loop(jrun *r, jloop *loop, jvalue iterable, jvalue *out);
mn_status jinja_new_scope(jrun *r, jscope *parent, const jframe *frame, jscope **out);
mn_status jinja_assign(jrun *r, jscope *scope, const jnode *target, jvalue value);

/* ---- tables ---- */

const jbuiltin *jinja_find_filter(const jstring *name); /* NULL when there is none */
const char *jinja_nearest_filter(const jstring *name);  /* that an unknown name may mean; NULL: none */
const jbuiltin *jinja_find_test(const jstring *name);
const jbuiltin *jinja_find_method(jvalue object, const jstring *name);
const jbuiltin *jinja_find_global(const jstring *name);
const jbuiltin *jinja_find(const jbuiltin *table, size_t n, const jstring *name);
extern const jbuiltin jinja_string_methods[], jinja_text_filters[], jinja_list_filters[], jinja_value_filters[];
extern const size_t jinja_n_string_methods, jinja_n_text_filters, jinja_n_list_filters, jinja_n_value_filters;
/* Fields that objects have beside methods (loop.index, cycler.current, ...): J_MISSING when there is none. */
mn_status jinja_field(jrun *r, jvalue object, const jstring *name, jvalue *out);
mn_status jinja_loop_peek(jrun *r, jloop *loop);
mn_status jinja_loop_length(jrun *r, jloop *loop, int64_t *out);

/* Typed arguments of a built-in; a missing one leaves *out. */
mn_status jinja_arg_int(jrun *r, const jcall *c, int i, int64_t *out);
mn_status jinja_arg_text(jrun *r, const jcall *c, int i, const jstring **out); /* must be a string */
static inline bool jinja_arg_flag(const jcall *c, int i, bool fallback) {
    return j_given(c->arg[i]) ? jinja_truth(c->arg[i]) : fallback;
}
static inline jvalue jinja_arg_or(const jcall *c, int i, jvalue fallback) {
    return j_given(c->arg[i]) ? c->arg[i] : fallback;
}

/* ---- unicode.c: character properties and case as Python's str has them ---- */

bool jchar_space(uint32_t c);
bool jchar_printable(uint32_t c);
bool jchar_alpha(uint32_t c);
bool jchar_decimal(uint32_t c);
bool jchar_digit(uint32_t c);
bool jchar_numeric(uint32_t c);
bool jchar_upper(uint32_t c);
bool jchar_lower(uint32_t c);
bool jchar_title(uint32_t c);
bool jchar_identifier(uint32_t c, bool first);
typedef enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_TITLE, JCASE_FOLD } jcase;
/* Appends the mapping of text[at..], one code point; the surrounding text decides on the final sigma. */
mn_status jchar_put(jrun *r, const jstring *s, size_t at, jcase mapping);
mn_status jinja_map_case(jrun *r, jvalue text, jcase mapping, jvalue *out);
/* Strips characters of `set` (NULL: white space) at the requested ends. */
mn_status jinja_strip(jinja_arena *arena, const jstring *s, const jstring *set, bool left, bool right, size_t *from,
                      size_t *to);
/* Length in bytes of the code point at s[at], and the code point. Text of values is always valid UTF-8. */
size_t jchar_at(const char *data, size_t n, size_t at, uint32_t *code);

#endif
