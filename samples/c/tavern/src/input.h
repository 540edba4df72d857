/* Keys, and a script's keys: what the player does. */
#ifndef TAVERN_INPUT_H
#define TAVERN_INPUT_H

#include "assets.h"
#include "game.h"

/* Takes all of SDL's events. */
void input_take(game *g, assets *pictures);
/* At most one step of the script. A key is put into SDL's queue, as if it had been pressed. */
void input_play(game *g, const assets *pictures);

#endif
