/* pickle_call.h - opcodes of classes; what each takes, the protocol says. */
#ifndef STORE_FORMATS_PICKLE_CALL_H
#define STORE_FORMATS_PICKLE_CALL_H

#include "store/formats/pickle_machine.h"

/* Find the listed classes by their names; once, before all else. */
void pickle_index_classes(struct machine *m);

int pickle_run_global(struct machine *m);
int pickle_run_stack_global(struct machine *m);
int pickle_run_reduce(struct machine *m);
int pickle_run_newobj(struct machine *m);
int pickle_run_newobj_ex(struct machine *m);
int pickle_run_persistent(struct machine *m);
int pickle_run_build(struct machine *m);

#endif
