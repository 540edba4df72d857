#include "assets.h"

/* Bricks in a level's colour, each a little lighter or darker than its neighbour. */
static Uint32 brick(const unsigned char colour[3], int x, int y, int piece) {
    const int row = y / 24, column = (x + (row % 2) * 24) / 48;
    const int mortar = y % 24 < 2 || (x + (row % 2) * 24) % 48 < 2;
    const int shade = mortar ? -24 : (row * 7 + column * 13 + piece * 5) % 17 - 8;
    Uint32 pixel = 0xFF;
    int i;
    for (i = 0; i < 3; i++) {
        const int value = colour[i] + shade;
        pixel = pixel << 8 | (Uint32)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
    return pixel;
}

static void paint(void *pixels, int pitch, const unsigned char colour[3], int piece) {
    int x, y;
    for (y = 0; y < LEVEL_PIECE_SIDE; y++) {
        Uint32 *row = (Uint32 *)((char *)pixels + (size_t)y * (size_t)pitch);
        for (x = 0; x < LEVEL_PIECE_SIDE; x++)
            row[x] = brick(colour, x, y, piece);
    }
}

int assets_load_piece(assets *of, SDL_Renderer *renderer, int level) {
    const level_plan *plan = &level_plans[level];
    SDL_Texture *made;
    void *pixels = NULL;
    int pitch = 0;
    if (of->count == LEVEL_MAX_PIECES) return 0;
    made = SDL_CreateTexture(renderer, SDL_PIXELFORMAT_ARGB8888, SDL_TEXTUREACCESS_STREAMING, LEVEL_PIECE_SIDE,
                             LEVEL_PIECE_SIDE);
    if (made == NULL) return 0;
    if (SDL_LockTexture(made, NULL, &pixels, &pitch) == 0) {
        paint(pixels, pitch, of->count % 2 ? plan->floor : plan->wall, of->count);
        SDL_UnlockTexture(made);
    }
    of->pieces[of->count++] = made;
    return 1;
}

void assets_free(assets *of) {
    while (of->count > 0)
        SDL_DestroyTexture(of->pieces[--of->count]);
}

uint64_t assets_bytes(const assets *of) {
    return (uint64_t)of->count * LEVEL_PIECE_BYTES;
}
