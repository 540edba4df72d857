/* The state as a line of JSON on standard output, for scripts. */
#ifndef TAVERN_REPORT_H
#define TAVERN_REPORT_H

#include "assets.h"
#include "game.h"

void report_print(const game *g, const assets *pictures, const char *word);

#endif
