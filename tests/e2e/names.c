/* Resolves the names in the file $NAMES, which has a line "name address" for each address of a name, in place of a
   network's DNS. The file may be replaced at any time. All other names are resolved as usual. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    lookup *next = (lookup *)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *path = getenv("NAMES");
    FILE *file = name && path ? fopen(path, "r") : NULL;
    if (file == NULL)
        return next(name, service, hints, found);
    char known[128], address[64];
    int num_found = 0;
    struct addrinfo **end = found;
    *found = NULL;
    while (fscanf(file, "%127s %63s", known, address) == 2)
        if (strcmp(name, known) == 0 && next(address, service, hints, end) == 0) {
            num_found++;
            while (*end)
                end = &(*end)->ai_next;
        }
    fclose(file);
    return num_found ? 0 : next(name, service, hints, found);
}
