/* copy.h - all bytes of one file to another, empty one. */
#ifndef STORE_BASE_COPY_H
#define STORE_BASE_COPY_H

/*
 * What `in` holds when the call begins; holes stay holes. Somebody may write to
 * it meanwhile: then the copy has some of that.
 */
int copy_file(int in, int out);

#endif
