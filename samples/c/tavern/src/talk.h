/* The game's side of xlm: everything that calls xlm.h. No function here waits, but talk_end(). */
#ifndef TAVERN_TALK_H
#define TAVERN_TALK_H

#include "game.h"

/* Starts the client and opens both conversations; neither needs a broker. `endpoint` NULL: where xlm-broker is by
 * itself. 0: it went wrong, and was said on stderr. */
int talk_begin(game *g, const char *endpoint);
/* Once a frame: what has arrived, and now and then a question for the broker's state. */
void talk_poll(game *g);
/* How long the last frame took. Not to be told of frames that mean nothing: while a level loads, or in a pause. */
void talk_frame(game *g, uint64_t frame_ns, uint64_t target_ns);
/* The player says something to whoever listens. */
void talk_say(game *g, const char *text, size_t len);
/* Whoever listens falls silent. */
void talk_hush(game *g);
/* The model may use what the game's state allows: the chosen budget, or all of it in a pause. */
void talk_budget(game *g);
/* Keeps `bytes` of the device for a level. The ticket of the answer; 0: there is nobody to answer. */
uint64_t talk_reserve(game *g, uint64_t bytes);
/* Says goodbye. */
void talk_end(game *g);

#endif
