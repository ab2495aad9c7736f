/* Movement of data between lanes, and matrix instructions. */

/* ---- between lanes */

static int read_lane(Machine *m, Wave *w, const Ins *i) {
  u32 room[LANES], own[LANES];
  const u32 *v = read_word(m, w, &i->w[0], room, 0);
  int lane = i->words > 1 ? (int)(scalar_word(m, w, &i->w[1]) & 63) : w->exec ? __builtin_ctzll(w->exec) : 0;
  u32 stale = stale_word(m, w, &i->w[0], own) ? own[lane] : 0;
  if (i->words > 1 && i->w[1].kind == W_SCALAR && in_set(w->stale, SCALARS + i->w[1].index)) return UNWRITTEN;
  if (stale || in_set(w->stale, SCALARS + i->p[0])) stain_scalar(w, SCALARS + i->p[0], stale);
  set_scalar(w, i->p[0], v[lane]);
  return 0;
}
static int write_lane(Machine *m, Wave *w, const Ins *i) {
  int lane = (int)(scalar_word(m, w, &i->w[1]) & 63), reg = set_of_row(m, i->p[0]);
  u32 stale = i->w[0].kind == W_SCALAR && in_set(w->stale, SCALARS + i->w[0].index) ? w->SP[i->w[0].index] : 0;
  if (i->w[1].kind == W_SCALAR && in_set(w->stale, SCALARS + i->w[1].index)) return UNWRITTEN;
  u32 *p = w->P + i->p[0] * LANES;
  if (stale || in_set(w->stale, reg)) {
    u32 any = 0;
    if (!in_set(w->stale, reg)) memset(p, 0, 4 * LANES);
    p[lane] = stale;
    for (int l = 0; l < LANES; l++) any |= p[l];
    mark(w, reg, any != 0);
  }
  w->V[i->p[0] * LANES + lane] = scalar_word(m, w, &i->w[0]);
  return 0;
}
static void exchange(u32 *a, u32 *b, int half) {
  for (int l = 0; l < LANES; l++) {
    u32 x = a[l];
    if (!half) { a[l] = b[l]; b[l] = x; }
    else if (l & half) { a[l] = b[l - half]; b[l - half] = x; }
  }
}
static int swap(Machine *m, Wave *w, const Ins *i) {
  u32 a[LANES], b[LANES], pa[LANES], pb[LANES];
  const Word one = {W_VECTOR, 0, 0, 0, i->p[0], 0, 0}, two = {W_VECTOR, 0, 0, 0, i->p[1], 0, 0};
  memcpy(a, w->V + i->p[0] * LANES, sizeof a);
  memcpy(b, w->V + i->p[1] * LANES, sizeof b);
  u32 any = stale_word(m, w, &one, pa) | stale_word(m, w, &two, pb);
  exchange(a, b, i->p[2]);
  write_row(w, i->p[0], a);
  write_row(w, i->p[1], b);
  if (any) {
    exchange(pa, pb, i->p[2]);
    stain_row(m, w, set_of_row(m, i->p[0]), pa, ~0u);
    stain_row(m, w, set_of_row(m, i->p[1]), pb, ~0u);
  }
  return 0;
}
static void permuted(const Wave *w, const u32 *in, const u32 *lane, int push, u32 *out) {
  if (push) {
    memset(out, 0, 4 * LANES);
    for (int l = 0; l < LANES; l++) if (w->em[l]) out[lane[l]] = in[l];
  } else for (int l = 0; l < LANES; l++) out[l] = in[lane[l]] & w->em[lane[l]];
}
static __attribute__((noinline)) int permute(Machine *m, Wave *w, const Ins *i) {
  const i32 *p = i->p;  /* target, address or -1, data, offset, push */
  u32 lane[LANES], out[LANES], own[LANES];
  const Word data = {W_VECTOR, 0, 0, 0, p[2], 0, 0}, where = {W_VECTOR, 0, 0, 0, p[1], 0, 0};
  if (p[1] < 0) for (int l = 0; l < LANES; l++) lane[l] = m->dpp[i->dpp].index[l];
  else {
    if (stale_word(m, w, &where, own)) for (int l = 0; l < LANES; l++) if (own[l] & w->em[l]) return UNWRITTEN;
    for (int l = 0; l < LANES; l++) lane[l] = (w->V[p[1] * LANES + l] + (u32)p[3]) >> 2 & 63;
  }
  int reg = set_of_row(m, p[0]);
  if (stale_word(m, w, &data, own)) {
    permuted(w, own, lane, p[4], out);
    stain_row(m, w, reg, out, ~0u);
  } else if (in_set(w->stale, reg)) stain_row(m, w, reg, 0, ~0u);
  permuted(w, w->V + p[2] * LANES, lane, p[4], out);
  write_row(w, p[0], out);
  return issue(m, w, i, 1, TAG_DS, 1);
}

/* ---- matrices */

enum { M_F16, M_BF16, M_F32, M_TABLE, M_I8, M_XF32 };

INLINE float element(const u32 *v, int l, int j, int kind, const float *table) {
  if (kind == M_F32) return float_of(v[j * LANES + l]);
  if (kind == M_F16) return from_half(v[j / 2 * LANES + l] >> 16 * (j & 1));
  if (kind == M_BF16) return float_of(j & 1 ? v[j / 2 * LANES + l] & 0xffff0000u : v[j / 2 * LANES + l] << 16);
  if (kind == M_I8) return (float)(i8)(v[j / 4 * LANES + l] >> 8 * (j & 3));
  if (kind == M_TABLE) return table[v[j / 4 * LANES + l] >> 8 * (j & 3) & 255];
  u32 b = v[j * LANES + l], rounded = (b + 0xfff + (b >> 13 & 1)) & 0xffffe000u;
  return float_of((b & 0x7f800000u) == 0x7f800000u ? b : rounded);
}
INLINE void elements_of(const u32 *v, int per_lane, const int kind, const float *table, float *out) {
  for (int j = 0; j < per_lane; j++)
    for (int l = 0; l < LANES; l++) out[j * LANES + l] = element(v, l, j, kind, table);
}
static void elements(const Wave *w, int row, int per_lane, int kind, const float *table, float *out) {
  const u32 *v = w->V + row * LANES;
  switch (kind) {
  case M_F16: elements_of(v, per_lane, M_F16, table, out); break;
  case M_BF16: elements_of(v, per_lane, M_BF16, table, out); break;
  case M_F32: elements_of(v, per_lane, M_F32, table, out); break;
  case M_TABLE: elements_of(v, per_lane, M_TABLE, table, out); break;
  case M_I8: elements_of(v, per_lane, M_I8, table, out); break;
  default: elements_of(v, per_lane, M_XF32, table, out);
  }
}
/* sum[r][c] = sum over k, in order, of left[r][k] right[k][c]; four rows at a time in registers (m is 4, 16 or 32) */
INLINE void product(const float *left, const float *right, float *sum, int m, const int n, int k_count, int pitch) {
  for (int r = 0; r < m; r += 4) {
    float line[4][32];
    for (int q = 0; q < 4; q++) for (int c = 0; c < n; c++) line[q][c] = 0;
    for (int k = 0; k < k_count; k++)
      for (int q = 0; q < 4; q++) {
        float a = left[(r + q) * k_count + k];
        for (int c = 0; c < n; c++) line[q][c] = fma32(a, right[k * n + c], line[q][c]);
      }
    for (int q = 0; q < 4; q++) for (int c = 0; c < n; c++) sum[(r + q) * pitch + c] = line[q][c];
  }
}
static __attribute__((noinline)) int matrix(Machine *m, Wave *w, const Ins *i) {
  const Matrix *x = &m->matrices[i->fn];
  const i32 *p = i->p;  /* target, left, right, accumulator row or -1 (then constant w[0]), registers */
  float left[LANES * 32], right[LANES * 32], by_row[64 * 128], by_k[64 * 128], sum[LANES * 32];
  elements(w, p[1], x->per_lane, x->left, x->left_table, left);
  elements(w, p[2], x->per_lane, x->right, x->right_table, right);
  int size = x->m * x->n;
  for (int b = 0; b < x->blocks; b++) {
    const i64 *rows = x->left_index + b * x->m * x->k, *columns = x->right_index + b * x->n * x->k;
    for (int j = 0; j < x->m * x->k; j++) by_row[j] = left[rows[j]];
    for (int j = 0; j < x->n * x->k; j++) by_k[j] = right[columns[j]];
    int pitch = x->m >= 16 ? x->n : x->n * x->blocks;
    float *to = x->m >= 16 ? sum + b * size : sum + b * x->n;
    if (x->n == 32) product(by_row, by_k, to, x->m, 32, x->k, pitch);
    else if (x->n == 16) product(by_row, by_k, to, x->m, 16, x->k, pitch);
    else product(by_row, by_k, to, x->m, 4, x->k, pitch);
  }
  u32 spoiled = 0, constant = p[3] < 0 ? m->constants[i->w[0].index][0] : 0;
  for (int k = 0; k < i->source_count; k++) {
    int reg = m->sources[i->source_at + k];
    if (!in_set(w->stale, reg)) continue;
    for (int l = 0; l < LANES; l++) spoiled |= w->P[row_of(m, reg) * LANES + l];
  }
  /* The target may overlap the accumulator it is added to, shifted: all of that is read before anything is written. */
  u32 before[LANES * 32], soiled[LANES * 32];
  int held[32];
  for (int j = 0; p[3] >= 0 && j < p[4]; j++) {
    memcpy(before + j * LANES, w->V + (p[3] + j) * LANES, sizeof(u32) * LANES);
    memcpy(soiled + j * LANES, w->P + (p[3] + j) * LANES, sizeof(u32) * LANES);
    held[j] = in_set(w->stale, set_of_row(m, p[3] + j));
  }
  for (int j = 0; j < p[4]; j++) {
    u32 *to = w->V + (p[0] + j) * LANES, *stain = w->P + (p[0] + j) * LANES, any = 0;
    const u32 *c = p[3] < 0 ? 0 : before + j * LANES;
    const float *s = sum + j * LANES;
    for (int l = 0; l < LANES; l++) {
      u32 add = c ? c[l] : constant;
      if (x->result) to[l] = (u32)(i32)s[l] + add;
      else to[l] = bits_of(c || constant ? s[l] + float_of(add) : s[l]);
    }
    int kept = p[3] >= 0 && held[j], reg = set_of_row(m, p[0] + j);
    if (!spoiled && !kept && !in_set(w->stale, reg)) continue;
    for (int l = 0; l < LANES; l++) {
      stain[l] = (kept ? soiled[j * LANES + l] : 0) | (spoiled ? ~0u : 0);
      any |= stain[l];
    }
    mark(w, reg, any != 0);
  }
  return 0;
}
