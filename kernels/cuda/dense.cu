// dense.cu: dense matrix products by cuBLASLt. The library is opened at the first product, not when
// the program starts: without it everything works, with matmul.cu's own kernels.
//
// Each host thread keeps the library's handle and, for each product so far (sizes, kind,
// alignment), the descriptors and the algorithm that its heuristic prefers. The same bits every
// time: split sums are added through the workspace, never in the order of finishing.
#include "dense.cuh"
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>
#include <string.h>

// X(name): the functions that are used. The header provides only their types.
#define FUNCTIONS(X) \
    X(Create) X(MatmulDescCreate) X(MatmulDescSetAttribute) X(MatmulDescDestroy) X(MatrixLayoutCreate) \
    X(MatrixLayoutDestroy) X(MatrixLayoutSetAttribute) X(MatmulPreferenceCreate) X(MatmulPreferenceSetAttribute) \
    X(MatmulPreferenceDestroy) X(MatmulAlgoGetHeuristic) X(Matmul)

enum { SCRATCH = 32 << 20, MOST_KNOWN = 256 };
typedef struct { int m, n, k, batch, a_transposed, b_transposed, c_real, add, a_align, b_align, c_align; } Key;
typedef struct {
    Key key;
    bool usable;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} KnownProduct;

static thread_local struct {
    bool tried;
    cublasLtHandle_t handle;                            // NULL: no library
#define DECLARE(name) decltype(&cublasLt##name) name;
    FUNCTIONS(DECLARE)
    KnownProduct known[MOST_KNOWN];
    int count;
} lt;

static bool load_library(void) {
    if (lt.tried) return lt.handle != NULL;
    lt.tried = true;
    const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so" };
    void *library = NULL;
    for (int i = 0; i < 3 && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
#define LOOK_UP(name) if (!(lt.name = (decltype(lt.name))dlsym(library, "cublasLt" #name))) return false;
    FUNCTIONS(LOOK_UP)
    if (lt.Create(&lt.handle) != CUBLAS_STATUS_SUCCESS) lt.handle = NULL;
    return lt.handle != NULL;
}

static int alignment(uintptr_t p) {                     // the largest power of two that divides the address, up to 256
    const uintptr_t low = p & -p;
    return low == 0 || low > 256 ? 256 : (int)low;
}

static void forget(KnownProduct *w) {
    if (w->product) lt.MatmulDescDestroy(w->product);
    if (w->a) lt.MatrixLayoutDestroy(w->a);
    if (w->b) lt.MatrixLayoutDestroy(w->b);
    if (w->c) lt.MatrixLayoutDestroy(w->c);
}

#define OK(call) (lt.call == CUBLAS_STATUS_SUCCESS)
#define LAYOUT(name, x) OK(MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_##name, &x, sizeof x))
#define PREFER(name, x) OK(MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_##name, &x, sizeof x))
// A matrix by columns, or `batch` of them in consecutive memory.
static bool create_layout(cublasLtMatrixLayout_t *layout, cudaDataType_t type, int rows, int columns, int batch) {
    const int64_t stride = (int64_t)rows * columns;
    return OK(MatrixLayoutCreate(layout, type, (uint64_t)rows, (uint64_t)columns, rows))
        && LAYOUT(BATCH_COUNT, batch) && LAYOUT(STRIDED_BATCH_OFFSET, stride);
}

// Asks the heuristic for one algorithm. False if any step fails.
static bool find_algorithm(KnownProduct *w) {
    const Key k = w->key;
    const cudaDataType_t type = sizeof(floatX) == 2 ? CUDA_R_16BF : CUDA_R_32F, c_type = k.c_real ? CUDA_R_32F : type;
    const cublasOperation_t op[] = { CUBLAS_OP_N, CUBLAS_OP_T };
    const int a_rows = k.a_transposed ? k.k : k.m, a_columns = k.a_transposed ? k.m : k.k;
    const int b_rows = k.b_transposed ? k.n : k.k, b_columns = k.b_transposed ? k.k : k.n;
    const uint64_t scratch = SCRATCH;
    const uint32_t in_workspace = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;      // besides NONE, which is always allowed
    const uint32_t align[] = { (uint32_t)k.a_align, (uint32_t)k.b_align, (uint32_t)k.c_align };
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    bool ok = OK(MatmulDescCreate(&w->product, CUBLAS_COMPUTE_32F, CUDA_R_32F))         // f32 products too: no TF32
        && OK(MatmulDescSetAttribute(w->product, CUBLASLT_MATMUL_DESC_TRANSA, &op[k.a_transposed], sizeof *op))
        && OK(MatmulDescSetAttribute(w->product, CUBLASLT_MATMUL_DESC_TRANSB, &op[k.b_transposed], sizeof *op))
        && create_layout(&w->a, type, a_rows, a_columns, k.batch)
        && create_layout(&w->b, type, b_rows, b_columns, k.batch)
        && create_layout(&w->c, c_type, k.m, k.n, k.batch) && OK(MatmulPreferenceCreate(&preference))
        && PREFER(MAX_WORKSPACE_BYTES, scratch) && PREFER(REDUCTION_SCHEME_MASK, in_workspace)
        && PREFER(MIN_ALIGNMENT_A_BYTES, align[0]) && PREFER(MIN_ALIGNMENT_B_BYTES, align[1])
        && PREFER(MIN_ALIGNMENT_C_BYTES, align[2]) && PREFER(MIN_ALIGNMENT_D_BYTES, align[2])
        && OK(MatmulAlgoGetHeuristic(lt.handle, w->product, w->a, w->b, w->c, w->c, preference, 1, &found, &count))
        && count == 1;
    if (preference) lt.MatmulPreferenceDestroy(preference);
    if (ok) w->algorithm = found.algo;
    return ok;
}

static KnownProduct *known_product(Key key) {
    for (int i = 0; i < lt.count; i++) if (!memcmp(&lt.known[i].key, &key, sizeof key)) return &lt.known[i];
    if (lt.count == MOST_KNOWN) while (lt.count) forget(&lt.known[--lt.count]);     // full: start over
    KnownProduct *w = &lt.known[lt.count++];
    *w = KnownProduct();
    w->key = key;
    w->usable = find_algorithm(w);
    return w;
}

bool dense_product(void *c, bool c_real, bool add, const floatX *a, bool a_transposed, const floatX *b,
                   bool b_transposed, int m, int n, int k, int batch) {
    if (add && !c_real && sizeof(floatX) == 2) return false;    // it would round the product before the sum (measured)
    if (!load_library()) return false;
    auto aligned = [&](const void *p, int rows, int columns, size_t size) {
        return alignment((uintptr_t)p | (batch > 1 ? (size_t)rows * columns * size : 0));
    };
    KnownProduct *w = known_product({ m, n, k, batch, a_transposed, b_transposed, c_real, add,
                                      aligned(a, m, k, sizeof *a), aligned(b, k, n, sizeof *b),
                                      aligned(c, m, n, c_real ? sizeof(real) : sizeof(floatX)) });
    if (!w->usable) return false;
    const float one = 1, beta = add;
    w->usable = lt.Matmul(lt.handle, w->product, &one, a, w->a, b, w->b, &beta, c, w->c, c, w->c, &w->algorithm,
                          workspace(SCRATCH), SCRATCH, context()->stream) == CUBLAS_STATUS_SUCCESS;
    return w->usable;
}
#else
bool dense_product(void *, bool, bool, const floatX *, bool, const floatX *, bool, int, int, int, int) { return false; }
#endif
