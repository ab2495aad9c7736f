// Qwen3 decoder with int8 weights, float32 activations and a float32 key-value cache. `kvc_forward` advances `rows`
// tokens at once: each has a slot (its sequence) and a position, so that reading a prompt and writing several answers
// side by side are the same call. Rows of a slot come in order of position. No state but the cache, no allocation.
#include <stdint.h>

typedef float v16 __attribute__((vector_size(64), aligned(4)));
typedef int8_t b16 __attribute__((vector_size(16), aligned(1)));
enum { LANES = 16, TILE = 8 };

typedef struct {
  const int8_t *q, *k, *v, *o, *gate, *up, *down;
  const float *q_scale, *k_scale, *v_scale, *o_scale, *gate_scale, *up_scale, *down_scale;
  const float *norm, *q_norm, *k_norm, *mlp_norm;
} Layer;

typedef struct {
  int32_t vocabulary, hidden, layers, heads, kv_heads, head, inner, context;
  float epsilon;
  const int8_t *embed;
  const float *embed_scale, *norm;
  const float *cosine, *sine;  // [context, head / 2]
  const Layer *layer;
} Model;

typedef struct {
  float *keys, *values;  // [slots, layers, kv_heads, context, head]
  // Room for `rows`: x and y [hidden], q [heads * head], kv [2 * kv_heads * head], a and b [inner], scores [context].
  float *x, *y, *q, *kv, *a, *b, *scores;
  int32_t context;
} State;

static inline float total(v16 v) {
  float sum = 0;
  for (int i = 0; i < LANES; ++i) sum += v[i];
  return sum;
}

static inline v16 wide(const int8_t *w) { return __builtin_convertvector(*(const b16 *)w, v16); }

static float exponential(float x) {
  // 2^n * e^r with |r| <= ln(2) / 2; the polynomial is e^r's series to the seventh power (error below 1e-8).
  if (x < -87.0f) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  const float n = __builtin_floorf(x * 1.44269504f + 0.5f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  union { int32_t i; float f; } two = {.i = ((int32_t)n + 127) << 23};
  return p * two.f;
}

// y[r, o] = scale[o] * sum_i w[o, i] * x[r, i], up to TILE rows at a time: a weight is widened once for all of them.
#define MATMUL_TILE(R)                                                                             \
  static void matmul_##R(float *y, const float *x, const int8_t *w, const float *scale, int out, int in) { \
    for (int o = 0; o < out; ++o) {                                                                \
      const int8_t *row = w + (int64_t)o * in;                                                     \
      v16 acc[R] = {};                                                                             \
      for (int i = 0; i < in; i += LANES) {                                                        \
        const v16 weight = wide(row + i);                                                          \
        for (int r = 0; r < R; ++r) acc[r] += weight * *(const v16 *)(x + (int64_t)r * in + i);    \
      }                                                                                            \
      for (int r = 0; r < R; ++r) y[(int64_t)r * out + o] = total(acc[r]) * scale[o];              \
    }                                                                                              \
  }
MATMUL_TILE(2)
MATMUL_TILE(4)
MATMUL_TILE(8)

// One row: four rows of the matrix at a time instead, so that sums do not wait for each other.
static void matmul_1(float *y, const float *x, const int8_t *w, const float *scale, int out, int in) {
  int o = 0;
  for (; o + 4 <= out; o += 4) {
    v16 acc[4] = {};
    for (int i = 0; i < in; i += LANES) {
      const v16 value = *(const v16 *)(x + i);
      for (int r = 0; r < 4; ++r) acc[r] += wide(w + (int64_t)(o + r) * in + i) * value;
    }
    for (int r = 0; r < 4; ++r) y[o + r] = total(acc[r]) * scale[o + r];
  }
  for (; o < out; ++o) {
    v16 acc = {};
    for (int i = 0; i < in; i += LANES) acc += wide(w + (int64_t)o * in + i) * *(const v16 *)(x + i);
    y[o] = total(acc) * scale[o];
  }
}

static void matmul(float *y, const float *x, const int8_t *w, const float *scale, int rows, int out, int in) {
  while (rows > 0) {
    const int n = rows >= 8 ? 8 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
    (n == 8 ? matmul_8 : n == 4 ? matmul_4 : n == 2 ? matmul_2 : matmul_1)(y, x, w, scale, out, in);
    rows -= n;
    y += (int64_t)n * out;
    x += (int64_t)n * in;
  }
}

static void rms_norm(float *y, const float *x, const float *weight, int n, float epsilon) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  const float factor = 1.0f / __builtin_sqrtf(sum / n + epsilon);
  for (int i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

// The two halves of a head turn against each other.
static void rotate(float *x, const float *cosine, const float *sine, int head) {
  const int half = head / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

static float dot(const float *a, const float *b, int n) {
  v16 acc = {};
  for (int i = 0; i < n; i += LANES) acc += *(const v16 *)(a + i) * *(const v16 *)(b + i);
  return total(acc);
}

// One query head over the cached positions 0..last.
static void attend(float *out, const float *q, const float *keys, const float *values, float *scores, int last, int head) {
  const float scale = 1.0f / __builtin_sqrtf((float)head);
  float most = -3.0e38f, sum = 0;
  for (int t = 0; t <= last; ++t) {
    scores[t] = dot(q, keys + (int64_t)t * head, head) * scale;
    if (scores[t] > most) most = scores[t];
  }
  for (int i = 0; i < head; ++i) out[i] = 0;
  for (int t = 0; t <= last; ++t) {
    const float p = exponential(scores[t] - most);
    sum += p;
    const float *value = values + (int64_t)t * head;
    for (int i = 0; i < head; i += LANES) *(v16 *)(out + i) += p * *(const v16 *)(value + i);
  }
  for (int i = 0; i < head; ++i) out[i] /= sum;
}

static void attention(const Model *m, State *s, const Layer *l, int index, int rows, const int32_t *slots,
                      const int32_t *positions) {
  const int width = m->kv_heads * m->head, group = m->heads / m->kv_heads;
  const int64_t plane = (int64_t)s->context * m->head;
  for (int r = 0; r < rows; ++r) {
    const float *cosine = m->cosine + (int64_t)positions[r] * (m->head / 2);
    const float *sine = m->sine + (int64_t)positions[r] * (m->head / 2);
    float *k = s->kv + (int64_t)r * 2 * width, *v = k + width;
    for (int h = 0; h < m->kv_heads; ++h) {
      const int64_t at = (((int64_t)slots[r] * m->layers + index) * m->kv_heads + h) * plane + (int64_t)positions[r] * m->head;
      rms_norm(s->keys + at, k + h * m->head, l->k_norm, m->head, m->epsilon);
      rotate(s->keys + at, cosine, sine, m->head);
      for (int i = 0; i < m->head; ++i) s->values[at + i] = v[h * m->head + i];
    }
  }
  for (int r = 0; r < rows; ++r) {
    const float *cosine = m->cosine + (int64_t)positions[r] * (m->head / 2);
    const float *sine = m->sine + (int64_t)positions[r] * (m->head / 2);
    float *q = s->q + (int64_t)r * m->heads * m->head;
    for (int h = 0; h < m->heads; ++h) {
      float query[512];
      rms_norm(query, q + h * m->head, l->q_norm, m->head, m->epsilon);
      rotate(query, cosine, sine, m->head);
      const int64_t base = (((int64_t)slots[r] * m->layers + index) * m->kv_heads + h / group) * plane;
      attend(q + h * m->head, query, s->keys + base, s->values + base, s->scores, positions[r], m->head);
    }
  }
}

static void layer(const Model *m, State *s, int index, int rows, const int32_t *slots, const int32_t *positions) {
  const Layer *l = m->layer + index;
  const int h = m->hidden, wide_q = m->heads * m->head, width = m->kv_heads * m->head;
  for (int r = 0; r < rows; ++r) rms_norm(s->y + (int64_t)r * h, s->x + (int64_t)r * h, l->norm, h, m->epsilon);
  matmul(s->q, s->y, l->q, l->q_scale, rows, wide_q, h);
  matmul(s->a, s->y, l->k, l->k_scale, rows, width, h);
  matmul(s->b, s->y, l->v, l->v_scale, rows, width, h);
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < width; ++i) {
      s->kv[(int64_t)r * 2 * width + i] = s->a[(int64_t)r * width + i];
      s->kv[(int64_t)r * 2 * width + width + i] = s->b[(int64_t)r * width + i];
    }
  attention(m, s, l, index, rows, slots, positions);
  matmul(s->y, s->q, l->o, l->o_scale, rows, h, wide_q);
  for (int64_t i = 0; i < (int64_t)rows * h; ++i) s->x[i] += s->y[i];
  for (int r = 0; r < rows; ++r) rms_norm(s->y + (int64_t)r * h, s->x + (int64_t)r * h, l->mlp_norm, h, m->epsilon);
  matmul(s->a, s->y, l->gate, l->gate_scale, rows, m->inner, h);
  matmul(s->b, s->y, l->up, l->up_scale, rows, m->inner, h);
  for (int64_t i = 0; i < (int64_t)rows * m->inner; ++i) s->a[i] = s->a[i] / (1.0f + exponential(-s->a[i])) * s->b[i];
  matmul(s->y, s->a, l->down, l->down_scale, rows, h, m->inner);
  for (int64_t i = 0; i < (int64_t)rows * h; ++i) s->x[i] += s->y[i];
}

// Logits [number of wanted rows, vocabulary] of the rows with wanted[r] != 0, in order.
void kvc_forward(const Model *m, State *s, int rows, const int32_t *tokens, const int32_t *slots,
                 const int32_t *positions, const uint8_t *wanted, float *logits) {
  const int h = m->hidden;
  for (int r = 0; r < rows; ++r) {
    const int8_t *row = m->embed + (int64_t)tokens[r] * h;
    for (int i = 0; i < h; ++i) s->x[(int64_t)r * h + i] = row[i] * m->embed_scale[tokens[r]];
  }
  for (int n = 0; n < m->layers; ++n) layer(m, s, n, rows, slots, positions);
  int kept = 0;
  for (int r = 0; r < rows; ++r)
    if (wanted[r]) rms_norm(s->y + (int64_t)kept++ * h, s->x + (int64_t)r * h, m->norm, h, m->epsilon);
  matmul(logits, s->y, m->embed, m->embed_scale, kept, m->vocabulary, h);
}
