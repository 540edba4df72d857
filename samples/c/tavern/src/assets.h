/* A level's textures: the memory it really takes. */
#ifndef TAVERN_ASSETS_H
#define TAVERN_ASSETS_H

#include <SDL.h>

#include "level.h"

typedef struct assets {
    SDL_Texture *pieces[LEVEL_MAX_PIECES];
    int count;
} assets;

/* Makes and paints the next texture of a level. 0: there is no memory for it. */
int assets_load_piece(assets *of, SDL_Renderer *renderer, int level);
void assets_free(assets *of);
/* Bytes of the textures there are. */
uint64_t assets_bytes(const assets *of);

#endif
