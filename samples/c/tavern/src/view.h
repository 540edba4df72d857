/* Drawing. Reads the game's state and changes nothing of it. */
#ifndef TAVERN_VIEW_H
#define TAVERN_VIEW_H

#include <SDL.h>

#include "assets.h"
#include "game.h"

void view_draw(SDL_Renderer *renderer, const game *g, const assets *pictures);
/* Saves what was drawn, before it is presented. 0: it could not be. */
int view_save(SDL_Renderer *renderer, const char *path);

#endif
