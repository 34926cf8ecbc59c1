/* launch.c: see launch.h. */
#define _POSIX_C_SOURCE 200809L
#include "launch.h"
#include "net.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_PROCESSES = 1 << 20, DEFAULT_PORT = 29501 };

/* In order of precedence. A launcher is recognized by its `size` variable; a `rank` without `size`
 * is an error. Slurm sets SLURM_PROCID and SLURM_NTASKS in every shell of a job, so only the
 * variables of a job step (srun) count: rank_alone 1, a rank without a size is ignored. */
static const struct { const char *launcher, *rank, *size, *local, *locals, *job; int rank_alone; } launchers[] = {
    { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", 0 },
    { "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                  "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", 0 },
    { "MPICH",    "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, 0 },
    { "Slurm",    "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_JOB_ID", 1 }, };
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

const char *launch_getenv(const char *name) { return getenv(name); }
int launch_is_local(const Launch *l) { return l->locals == l->processes || net_is_loopback(l->address); }

/* Parses the value of variable `name`; 0 and e if it is not a whole number in [low, high]. */
static int number(int *x, const char *name, const char *text, long low, long high, Error *e) {
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || value < low || value > high)
        return error_set(e, "%s=%s: expected a whole number from %ld to %ld", name, text, low, high);
    *x = (int)value;
    return 1;
}
static int optional(int *x, const char *name, const char *(*get)(const char *), long low, long high, Error *e) {
    const char *text = name ? get(name) : NULL;
    return !text || number(x, name, text, low, high, e);
}

/* The first host of Slurm's list: node[003-010,12],other means node003. */
static void first_host(char *host, size_t capacity, const char *list) {
    size_t n = 0;
    for (const char *c = list; *c && *c != ',' && n + 1 < capacity; c++) {
        if (*c != '[') { host[n++] = *c; continue; }
        while (*++c && !strchr("-,]", *c) && n + 1 < capacity) host[n++] = *c;
        while (*c && *c != ']') c++;
        if (!*c) break;
    }
    host[n] = 0;
}

/* Slurm's tasks on one node, from its list over all nodes: 4(x2),3 means 4, 4, 3. 0: not listed. */
static int tasks_on(int node, const char *list) {
    while (*list) {
        char *end;
        const long tasks = strtol(list, &end, 10);
        long times = 1;
        if (end == list) return 0;
        if (!strncmp(end, "(x", 2)) {
            times = strtol(end + 2, &end, 10);
            if (*end == ')') end++;
        }
        if (tasks < 1 || tasks > MAX_PROCESSES || times < 1 || times > MAX_PROCESSES) return 0;
        if (node < times) return (int)tasks;
        node -= (int)times;
        list = end + (*end == ',');
    }
    return 0;
}
static int slurm_locals(Launch *l, const char *(*get)(const char *), Error *e) {
    const char *tasks = get("SLURM_STEP_TASKS_PER_NODE");
    int node = 0;
    if (!optional(&node, "SLURM_NODEID", get, 0, MAX_PROCESSES, e)) return 0;
    if (tasks) l->locals = tasks_on(node, tasks);
    return 1;
}

/* Where process 0 listens. Torchrun's agent may occupy MASTER_PORT, so the next port is used. Slurm
 * jobs derive the port from the job number, so that two jobs on one node get different ports. */
static int find_address(Launch *l, const Launch *flags, const char *(*get)(const char *), Error *e) {
    const char *nodes = get("SLURM_STEP_NODELIST"), *master = get("MASTER_ADDR"), *port = get("MASTER_PORT");
    int job = 0;
    if (!nodes) nodes = get("SLURM_JOB_NODELIST");
    if (*flags->address) strcpy(l->address, flags->address);
    else if (master && strlen(master) < sizeof l->address) strcpy(l->address, master);
    else if (l->locals == l->processes || !strcmp(l->launcher, "flags")) strcpy(l->address, "localhost");
    else if (nodes) first_host(l->address, sizeof l->address, nodes);
    else return error_set(e, "started by %s on several machines, but the address of process 0 is unknown: "
                          "set MASTER_ADDR to its host name", l->launcher);
    if (flags->port) l->port = flags->port;
    else if (port) {
        if (!number(&l->port, "MASTER_PORT", port, 1, 65534, e)) return 0;
        l->port += !strcmp(l->launcher, "torchrun");
    } else if (!strcmp(l->launcher, "Slurm") && optional(&job, "SLURM_JOB_ID", get, 0, 0x7fffffff, e) && job)
        l->port = 10000 + job % 20000;
    else l->port = DEFAULT_PORT;
    return 1;
}
int launch_find(Launch *l, const Launch *flags, const char *(*get)(const char *name), Error *e) {
    *l = (Launch){ .launcher = "none", .processes = 1, .locals = 1, .port = DEFAULT_PORT };
    if (flags->process >= 0 || flags->processes > 0) {
        if (flags->process < 0)
            return error_set(e, "-pn %d needs -pr, the number of this process: 0 to %d", flags->processes,
                             flags->processes - 1);
        if (flags->process >= flags->processes)
            return error_set(e, "-pr %d needs -pn, how many processes there are, more than %d", flags->process,
                             flags->process);
        *l = *flags;
        l->launcher = "flags";
        return find_address(l, flags, get, e);
    }
    for (int i = 0; i < LAUNCHERS; i++) {
        const char *rank = get(launchers[i].rank), *size = get(launchers[i].size), *job;
        if (!size && (!rank || launchers[i].rank_alone)) continue;
        if (!rank || !size)
            return error_set(e, "%s is set but %s is not: the environment of %s is incomplete",
                             rank ? launchers[i].rank : launchers[i].size,
                             rank ? launchers[i].size : launchers[i].rank, launchers[i].launcher);
        l->launcher = launchers[i].launcher;
        l->locals = 0;
        if (!number(&l->processes, launchers[i].size, size, 1, MAX_PROCESSES, e)
            || !number(&l->process, launchers[i].rank, rank, 0, l->processes - 1, e)
            || !optional(&l->locals, launchers[i].locals, get, 1, l->processes, e)
            || (!strcmp(l->launcher, "Slurm") && !slurm_locals(l, get, e))
            || !optional(&l->local, launchers[i].local, get, 0, l->processes - 1, e)) return 0;
        if (l->processes == 1) l->locals = 1;
        if (launchers[i].job && (job = get(launchers[i].job)) && strlen(job) < sizeof l->job) strcpy(l->job, job);
        return find_address(l, flags, get, e);
    }
    return 1;
}
