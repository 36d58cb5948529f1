/* CRC-32C, by the processor's own instruction where it has one. */
#ifndef DISKREPLAY_CRC32C_H
#define DISKREPLAY_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const uint8_t *data, size_t size);

/* As it is on a processor without the instruction. */
uint32_t crc32c_by_table(const uint8_t *data, size_t size);

/* Return how it is computed here: "instruction" or "table". */
const char *crc32c_method(void);

#endif
