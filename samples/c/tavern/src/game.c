#include "game.h"

#include <SDL.h>

const uint64_t budget_mib[BUDGET_COUNT] = {256, 96, 32, 0};

uint64_t game_now_ns(void) {
    return (uint64_t)((double)SDL_GetPerformanceCounter() * 1e9 / (double)SDL_GetPerformanceFrequency());
}
