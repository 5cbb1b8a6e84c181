/* Bodies of type multipart/form-data (RFC 7578), read part by part as they come: the fields of the table
 * (request/fields.h) as if they were members of a JSON object.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_FORM_H
#define MNEME_SERVE_FORM_H

#include "base/json.h"
#include "error.h"

struct MHD_Connection;

enum { MOST_PARTS = 64 };

typedef struct form form;

/* For a request whose header has been read. bodies: the form of its body, BODY_.... NULL: no memory, or the header has
 * no usable boundary. */
form *form_open(struct MHD_Connection *connection, unsigned bodies);
void form_close(form **f);

/* The next bytes of the body. */
void form_take(form *f, const char *data, size_t n);

/* The whole body as an object, which belongs to the form. Parts whose names end with [] are lists; numbers and flags
 * are read as JSON where the field takes them. MN_E_FORMAT for what is no such body, MN_E_ARG for a part that is there
 * twice or is no text, MN_E_NOMEM. */
mn_status form_end(form *f, const json **body, refusal *why);

#endif
