/* A game's loop as a load: THREADS workers that compute for WORK_US each frame, as job systems do, and one frame each
 * TARGET_NS, or at once where the last one took longer. It reports its frames with xlm_frame().
 *
 *     frame_loop ENDPOINT THREADS WORK_US TARGET_NS
 *
 * Says "ready" once it is calibrated. Then each line "off|steps|shrink SECONDS" on standard input plays for so long and
 * answers with a line of frame times in microseconds, begin to begin. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xlm/xlm.h>

#define MAX_THREADS 64
#define VALUES 8192 /* 32 KiB a worker: what fits its first cache */
#define CALIBRATION_FRAMES 60

typedef struct worker {
    pthread_t thread;
    float values[VALUES];
} worker;

static worker workers[MAX_THREADS];
static pthread_barrier_t begin, end;
static long repeats = 20;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t at_ns) {
    struct timespec at;
    at.tv_sec = (time_t)(at_ns / 1000000000u);
    at.tv_nsec = (long)(at_ns % 1000000000u);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
}

static void compute(worker *w) {
    long round;
    int i;
    for (round = 0; round < repeats; round++)
        for (i = 0; i < VALUES; i++)
            w->values[i] = w->values[i] * 0.999f + 0.001f;
}

static void *run_worker(void *self) {
    for (;;) {
        pthread_barrier_wait(&begin);
        compute(self);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

/* One frame's work on all workers; worker 0 is the calling thread. */
static void work(void) {
    pthread_barrier_wait(&begin);
    compute(&workers[0]);
    pthread_barrier_wait(&end);
}

static int ascending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Repeats that take `work_ns` here, with nothing else going on: twice, to be near the right load in the second. */
static void calibrate(uint64_t work_ns) {
    uint64_t took[CALIBRATION_FRAMES];
    int pass, i;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < CALIBRATION_FRAMES; i++) {
            const uint64_t start = now_ns();
            work();
            took[i] = now_ns() - start;
        }
        qsort(took, CALIBRATION_FRAMES, sizeof *took, ascending);
        repeats = (long)((double)repeats * (double)work_ns / (double)took[CALIBRATION_FRAMES / 2]) + 1;
    }
}

static void play(xlm_client *client, xlm_pacing pacing, double seconds, uint64_t target_ns) {
    xlm_frame_info frame = XLM_FRAME_INFO_INIT;
    uint64_t began = now_ns();
    const uint64_t last = began + (uint64_t)(seconds * 1e9);
    frame.pacing = pacing;
    frame.target_ns = target_ns;
    while (began < last) {
        uint64_t now;
        xlm_client_poll(client, 200000);
        work();
        if (now_ns() < began + target_ns) sleep_until(began + target_ns);
        now = now_ns();
        frame.frame_ns = now - began;
        xlm_frame(client, &frame);
        printf("%" PRIu64 " ", (now - began) / 1000);
        began = now;
    }
    printf("\n");
    fflush(stdout);
}

static xlm_client *connect_to(const char *endpoint) {
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    xlm_client *client = NULL;
    options.name = xlm_str_from("game");
    options.endpoint = xlm_str_from(endpoint);
    if (xlm_client_create(&options, &client) != XLM_SUCCESS) return NULL;
    return xlm_client_ready_wait(client, 60000000000u) == XLM_SUCCESS ? client : NULL;
}

int main(int argc, char **argv) {
    static const char *const names[] = {"off", "steps", "shrink"};
    const int threads = argc == 5 ? atoi(argv[2]) : 0;
    xlm_client *client = threads >= 1 && threads <= MAX_THREADS ? connect_to(argv[1]) : NULL;
    char line[64], mode[16];
    double seconds;
    int i;
    if (client == NULL) return 2;
    pthread_barrier_init(&begin, NULL, (unsigned)threads);
    pthread_barrier_init(&end, NULL, (unsigned)threads);
    for (i = 1; i < threads; i++)
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0) return 2;
    calibrate(strtoull(argv[3], NULL, 10) * 1000);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %lf", mode, &seconds) == 2)
        for (i = 0; i < 3; i++)
            if (strcmp(mode, names[i]) == 0) play(client, (xlm_pacing)i, seconds, strtoull(argv[4], NULL, 10));
    return xlm_client_destroy(client) == XLM_SUCCESS ? 0 : 1; /* the workers end with the process */
}
