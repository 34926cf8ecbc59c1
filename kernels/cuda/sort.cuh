// sort.cuh: a stable counting sort of whole numbers. For route.cu (slots by expert) and basic.cu (tokens by word).
#pragma once
#include "impl.cuh"

// What is wanted of a sort; NULL if not.
typedef struct {
    int *order;             // (n)  the elements, sorted
    int *place;             // (n)  where each went: the inverse of order
    int *owner, each;       // (n)  order[i] / each
    int *start;             // (buckets+1)  where a digit's elements begin
    int *count;             // (buckets)    how many they are
} Sorted;

// Sorts the numbers 0..n-1 (or the n numbers in `from`, if given) by the digit (key[i] >> shift) % buckets; equal digits
// keep the order they came in. Three launches; reads the keys twice. scratch: sort_scratch ints.
size_t DEVICE(sort_scratch)(int n, int buckets);
void   DEVICE(sort)(Sorted to, const int *key, const int *from, int n, int buckets, int shift, int *scratch);
