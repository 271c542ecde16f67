/* pickle_data.h - opcodes of data; what each takes, the protocol says. */
#ifndef STORE_FORMATS_PICKLE_DATA_H
#define STORE_FORMATS_PICKLE_DATA_H

#include "store/formats/pickle_machine.h"

int pickle_do_int(struct machine *m, size_t bytes);
int pickle_do_long(struct machine *m, size_t length_bytes);
int pickle_do_text(struct machine *m, size_t length_bytes, enum tag tag);
int pickle_do_frame(struct machine *m);
int pickle_do_proto(struct machine *m);
int pickle_do_tuple(struct machine *m, size_t count);
int pickle_do_empty(struct machine *m, enum tag tag);
int pickle_do_extend(struct machine *m, size_t count, enum tag tag);
int pickle_do_mark(struct machine *m);
int pickle_do_marked(struct machine *m, uint8_t op);
int pickle_do_pop(struct machine *m);
int pickle_do_memo(struct machine *m, uint8_t op);
int pickle_do_put(struct machine *m, uint64_t index);

#endif
