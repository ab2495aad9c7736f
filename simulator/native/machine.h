/* Runs the waves of one workgroup after another, each to its next barrier or its end.

   What it checks: every address against its buffer and its alignment, bytes and registers never written, registers
   with an outstanding memory operation, LDS races between barriers, barriers that not all waves reach, endless loops.
   The checks may be stricter than those of the NumPy tier, never weaker. Whatever they find, and whatever instruction
   has no form here, ends the run with a code: the caller then puts memory back and lets the NumPy tier judge. */

#define SET_WORDS 11
#define SCALARS 512
#define EXEC_LO 126
#define SCC 128
#define CODE_BASE 0x100000000000ull
#define RING 80    /* more than VM_CNT can count */
#define SLOTS 32
#define ADD_TID (1u << 23)

enum { OP_ALU, OP_REFUSED, OP_NOP, OP_JUMP, OP_BRANCH, OP_END, OP_BARRIER, OP_WAIT, OP_SAVEEXEC, OP_LOAD, OP_STORE,
       OP_LDS_READ, OP_LDS_WRITE, OP_SMEM, OP_MFMA, OP_READLANE, OP_WRITELANE, OP_SWAP, OP_PERMUTE, OP_SWIZZLE,
       OP_SETPC, OP_GETPC, OP_FENCE, OP_LOAD_LDS };
enum { W_VECTOR, W_SCALAR, W_CONSTANT, W_MASK, W_SCC, W_EXEC, W_VCCZ, W_EXECZ };
enum { X_NONE, X_SHIFT, X_HALVES, X_SIGNED, X_MIXED };
enum { D_VECTOR, D_SCALAR, D_MASK, D_SCC };
enum { T_SPREAD, T_DEMAND, T_LINEAR, T_BITWISE, T_SELECT, T_OWN, T_PAIR, T_HALVES, T_LOW_FIRST };
enum { TAG_LOAD = 1, TAG_STORE = 2, TAG_DS = 4, TAG_DS_WRITE = 8, TAG_SMEM = 16, TAG_FLAT = 32, TAG_DMA = 64 };
enum { SPACE_SADDR, SPACE_PAIR, SPACE_BUFFER };
enum { RUN_ON = 0, AT_BARRIER = 1, ENDED = 2, REFUSED = 10, OUT_OF_BOUNDS, MISALIGNED, UNWRITTEN, HAZARD, RACE, BARRIER,
       LIMIT, WILD_JUMP };

typedef struct { u8 kind, change, shift, upper; i32 index; u32 keep, flip; } Word;
typedef struct { u8 kind, post, shift, extend; i32 index; u32 field; float factor; } Target;
typedef struct {
  i32 op, fn, imm, taint;
  i32 words, targets, scalar, dpp;
  i32 source_at, source_count, target_at, target_count;
  i32 starts, jump, order, tag;
  i32 p[12];
  u64 reads[SET_WORDS], writes[SET_WORDS], both[SET_WORDS];
  Word w[8];
  Target d[4];
} Ins;
typedef struct { u64 start, size; u8 *data, *written, *kept, *kept_written; u64 padded; i32 read_only, saved; } Buffer;
typedef struct { i32 m, n, k, blocks, per_lane, left, right, result; const i64 *left_index, *right_index;
                 const float *left_table, *right_table; } Matrix;
typedef struct { u8 index[LANES], valid[LANES], write[LANES]; i32 zero_fill, pad; } Dpp;
typedef struct { u64 set[SET_WORDS], lanes; i32 tag, count, width, slot, base, pad; } Pending;
typedef struct {
  u32 *V, *P;
  u32 S[132], SP[132];
  u64 stale[SET_WORDS], busy[SET_WORDS], watch[SET_WORDS];
  u32 em[LANES];
  u64 exec;
  i32 number, pc, state, pad;
  u64 executed;
  i32 head[2], length[2];
  i32 next_slot, pad2;
  Pending queue[2][RING];
  u32 address[SLOTS][2 * LANES];  /* of LDS reads that may be outstanding at a barrier */
} Wave;
typedef struct { u64 bytes, more_bytes; double lines, line_samples, conflicts, conflict_samples; u64 executions; } Stats;
typedef struct {
  const Ins *code; const i32 *sources; const u32 *source_bits; const i32 *target_list; const u32 (*constants)[LANES];
  const Dpp *dpp; const Matrix *matrices; Buffer *buffers; Stats *stats; u64 *counts;
  Wave *waves; u8 *lds, *lds_valid; u32 *lds_writers, *lds_readers, *lds_flights;
  u64 limit;
  i32 code_count, buffer_count, vector_rows, accumulators_at, waves_per_group, lds_bytes, granule, banks;
  i32 check_races, check_waits, check_unwritten, last_buffer, where, dirty_low, dirty_high, seed, flights, found;
} Machine;

/* ---- registers and sets */

INLINE int row_of(const Machine *m, int reg) { return reg < 256 ? reg : reg - 256 + m->accumulators_at; }
INLINE int set_of_row(const Machine *m, int row) { return row < m->accumulators_at ? row : row - m->accumulators_at + 256; }
INLINE int in_set(const u64 *set, int reg) { return set[reg >> 6] >> (reg & 63) & 1; }
INLINE void watch_again(Wave *w) { for (int i = 0; i < SET_WORDS; i++) w->watch[i] = w->stale[i] | w->busy[i]; }
INLINE void mark(Wave *w, int reg, int stale) {
  u64 bit = 1ull << (reg & 63);
  int i = reg >> 6;
  w->stale[i] = stale ? w->stale[i] | bit : w->stale[i] & ~bit;
  w->watch[i] = w->stale[i] | w->busy[i];
}
static void exec_changed(Wave *w) {
  w->exec = w->S[EXEC_LO] | (u64)w->S[EXEC_LO + 1] << 32;
  for (int l = 0; l < LANES; l++) w->em[l] = -(u32)(w->exec >> l & 1);
}
INLINE u64 pair_of(const Wave *w, int s) { return w->S[s] | (u64)w->S[s + 1] << 32; }
static void set_scalar(Wave *w, int s, u32 value) {
  w->S[s] = value;
  if (s == EXEC_LO || s == EXEC_LO + 1) exec_changed(w);
}
static void set_pair(Wave *w, int s, u64 value) {
  w->S[s] = (u32)value; w->S[s + 1] = (u32)(value >> 32);
  if (s == EXEC_LO) exec_changed(w);
}
static u64 packed(const u32 *lanes) {
  u64 r = 0;
  for (int l = 0; l < LANES; l++) r |= (u64)(lanes[l] & 1) << l;
  return r;
}
INLINE void write_row(Wave *w, int row, const u32 *value) {
  u32 *v = w->V + row * LANES;
  if (w->exec == ~0ull) { if (v != value) memcpy(v, value, 4 * LANES); return; }
  for (int l = 0; l < LANES; l++) v[l] = (value[l] & w->em[l]) | (v[l] & ~w->em[l]);
}

/* ---- values never written: `stale` has a bit for each register with some, P and SP the bits themselves */

/* lanes' stale bits of a vector register under EXEC; only `field` of the register is written */
static void stain_row(Machine *m, Wave *w, int reg, const u32 *bits, u32 field) {
  u32 *p = w->P + row_of(m, reg) * LANES, any = 0;
  int had = in_set(w->stale, reg);
  for (int l = 0; l < LANES; l++) {
    u32 old = had ? p[l] : 0, fresh = (old & ~field) | (bits ? bits[l] & field : 0);
    p[l] = (fresh & w->em[l]) | (old & ~w->em[l]);
    any |= p[l];
  }
  mark(w, reg, any != 0);
}
static void stain_scalar(Wave *w, int reg, u32 bits) {
  w->SP[reg - SCALARS] = bits;
  mark(w, reg, bits != 0);
}
/* all ones in the lanes in which a source has stale bits that are read; nonzero if there are any */
static u32 stale_lanes(Machine *m, Wave *w, const Ins *i, u32 *lanes) {
  u32 any = 0;
  memset(lanes, 0, 4 * LANES);
  for (int k = 0; k < i->source_count; k++) {
    int reg = m->sources[i->source_at + k];
    u32 bits = m->source_bits[i->source_at + k];
    if (!bits || !in_set(w->stale, reg)) continue;
    if (reg >= SCALARS) {
      u32 one = w->SP[reg - SCALARS] & bits ? ~0u : 0;
      for (int l = 0; l < LANES; l++) lanes[l] |= one;
      any |= one;
    } else {
      const u32 *p = w->P + row_of(m, reg) * LANES;
      for (int l = 0; l < LANES; l++) { lanes[l] |= p[l] & bits ? ~0u : 0; any |= lanes[l]; }
    }
  }
  return any;
}
static void stain_targets(Machine *m, Wave *w, const Ins *i, const u32 *lanes) {
  u32 active = 0;
  if (lanes) for (int l = 0; l < LANES; l++) active |= lanes[l] & w->em[l];
  if (lanes && i->scalar) active = lanes[0];
  int half = 0;
  for (int k = 0; k < i->target_count; k++) {
    int reg = m->target_list[i->target_at + k];
    u32 field = i->op == OP_ALU && !i->scalar && i->d[0].kind == D_VECTOR ? i->d[0].field : ~0u;
    if (reg < SCALARS) { stain_row(m, w, reg, lanes, field); continue; }
    u32 bits = active ? ~0u : 0;
    if (active && !i->scalar && i->p[11]) {  /* a lane mask: the bits of its stale lanes */
      bits = 0;
      for (int l = 0; l < 32; l++) bits |= (lanes[half * 32 + l] & w->em[half * 32 + l] & 1) << l;
      half ^= 1;
    }
    stain_scalar(w, reg, bits);
  }
}
static u32 stale_word(Machine *m, Wave *w, const Word *o, u32 *out) {
  int reg = o->kind == W_VECTOR ? set_of_row(m, o->index) : o->kind == W_SCALAR ? SCALARS + o->index : -1;
  if (reg < 0 || !in_set(w->stale, reg)) { memset(out, 0, 4 * LANES); return 0; }
  u32 any = 0;
  for (int l = 0; l < LANES; l++) {
    out[l] = reg < SCALARS ? w->P[o->index * LANES + l] : w->SP[o->index];
    any |= out[l];
  }
  return any;
}

/* ---- operands */

static void change_word(u32 *out, const u32 *in, const Word *o) {
  u32 sh = o->shift, up = o->upper, keep = o->keep, flip = o->flip;
  switch (o->change & 127) {
  case X_SHIFT: for (int l = 0; l < LANES; l++) out[l] = ((in[l] >> sh) & keep) ^ flip; break;
  case X_HALVES: for (int l = 0; l < LANES; l++) out[l] = ((((in[l] >> sh) & 0xffff) | (in[l] >> up) << 16) & keep) ^ flip; break;
  case X_SIGNED: for (int l = 0; l < LANES; l++) out[l] = ((u32)((i32)(in[l] << sh) >> up) & keep) ^ flip; break;
  case X_MIXED: for (int l = 0; l < LANES; l++) out[l] = (bits_of(from_half(in[l] >> sh)) & keep) ^ flip; break;
  default: if (out != in) memcpy(out, in, 4 * LANES);
  }
}
static const u32 *read_word(Machine *m, Wave *w, const Word *o, u32 *room, const Dpp *dpp) {
  const u32 *in = room;
  u32 value = 0;
  switch (o->kind) {
  case W_VECTOR: in = w->V + o->index * LANES; break;
  case W_CONSTANT: in = m->constants[o->index]; break;
  case W_MASK: { u64 mask = pair_of(w, o->index); for (int l = 0; l < LANES; l++) room[l] = (u32)(mask >> l & 1); return room; }
  case W_EXEC: for (int l = 0; l < LANES; l++) room[l] = w->em[l] & 1; return room;
  case W_SCALAR: value = w->S[o->index]; break;
  case W_SCC: value = w->S[SCC]; break;
  case W_VCCZ: value = pair_of(w, 106) == 0; break;
  case W_EXECZ: value = w->exec == 0; break;
  }
  if (in == room) for (int l = 0; l < LANES; l++) room[l] = value;
  if (!o->change) return in;
  if (o->change & 128) {
    u32 moved[LANES];
    for (int l = 0; l < LANES; l++) moved[l] = dpp->valid[l] ? in[dpp->index[l]] & w->em[dpp->index[l]] : 0;
    change_word(room, moved, o);
  } else change_word(room, in, o);
  return room;
}
INLINE u32 scalar_word(Machine *m, const Wave *w, const Word *o) {
  switch (o->kind) {
  case W_SCALAR: return w->S[o->index];
  case W_CONSTANT: return m->constants[o->index][0];
  case W_SCC: return w->S[SCC];
  case W_VCCZ: return pair_of(w, 106) == 0;
  case W_EXECZ: return w->exec == 0;
  }
  return 0;
}

/* ---- ALU */

static void alu_scalar(Machine *m, Wave *w, const Ins *i) {
  u32 in[8], out[4];
  const u32 *s[8];
  u32 *d[4];
  for (int k = 0; k < i->words; k++) { in[k] = scalar_word(m, w, &i->w[k]); s[k] = &in[k]; }
  for (int k = 0; k < i->targets; k++) d[k] = &out[k];
  kvc_alu[i->fn](d, s, 1, (u32)i->imm);
  int exec = 0;
  for (int k = 0; k < i->targets; k++) {
    w->S[i->d[k].index] = out[k];
    exec |= i->d[k].index == EXEC_LO || i->d[k].index == EXEC_LO + 1;
  }
  if (exec) exec_changed(w);
}
/* output modifier (post & 1): a factor, then (post & 2) the clamp to [0, 1] with NaN to 0 */
static void finish(u32 *v, const Target *t) {
  for (int l = 0; l < LANES; l++) {
    float x = float_of(v[l]) * t->factor;
    if (t->post & 2) x = x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;
    v[l] = bits_of(x);
  }
}
static void place(Wave *w, const Target *t, u32 *v, u32 *row) {
  if (t->post & 8) for (int l = 0; l < LANES; l++) v[l] = v[l] << t->extend >> t->extend << t->shift;
  else if (t->extend) for (int l = 0; l < LANES; l++) v[l] = (u32)((i32)(v[l] << t->extend) >> (t->extend - t->shift));
  else if (t->shift) for (int l = 0; l < LANES; l++) v[l] <<= t->shift;
  if (t->field != ~0u) for (int l = 0; l < LANES; l++) v[l] = (v[l] & t->field) | (row[l] & ~t->field);
}
static void alu_vector(Machine *m, Wave *w, const Ins *i) {
  u32 room[8][LANES] __attribute__((aligned(64))), out[4][LANES] __attribute__((aligned(64)));
  const u32 *s[8];
  u32 *d[4];
  const Dpp *dpp = i->dpp < 0 ? 0 : &m->dpp[i->dpp];
  int whole = w->exec == ~0ull && !dpp;
  for (int k = 0; k < i->words; k++) s[k] = read_word(m, w, &i->w[k], room[k], dpp);
  for (int k = 0; k < i->targets; k++) {
    const Target *t = &i->d[k];
    int direct = whole && t->kind == D_VECTOR && t->field == ~0u && !t->shift && !t->extend;
    d[k] = direct ? w->V + t->index * LANES : out[k];
  }
  kvc_alu[i->fn](d, s, LANES, (u32)i->imm);
  for (int k = 0; k < i->targets; k++) {
    const Target *t = &i->d[k];
    if (t->kind == D_MASK) {
      set_pair(w, t->index, packed(d[k]) & w->exec);
      continue;
    }
    u32 *row = w->V + t->index * LANES;
    if (t->post & 3) finish(d[k], t);
    if (d[k] == row) continue;
    place(w, t, d[k], row);
    if (dpp) for (int l = 0; l < LANES; l++) {
      int ok = dpp->write[l] && (dpp->zero_fill || (dpp->valid[l] && w->em[dpp->index[l]]));
      d[k][l] = ok ? d[k][l] : row[l];
    }
    write_row(w, t->index, d[k]);
  }
}

/* ---- what an instruction does to values never written; nonzero ends the run */

/* packed results: each half or dword depends on the parts that op_sel picks for it; p[0]: result k is source k */
static void taint_parts(Machine *m, Wave *w, const Ins *i) {
  u32 own[LANES], out[2][LANES];
  memset(out, 0, sizeof out);
  for (int k = 0; k < i->words; k++) {
    const Word *o = &i->w[k];
    if (!stale_word(m, w, o, own)) continue;
    if (i->taint == T_PAIR) {
      if (i->p[0] && k / 2 != (k & 1)) continue;
      for (int l = 0; l < LANES; l++) out[k & 1][l] |= own[l] ? ~0u : 0;
    } else for (int h = 0; h < 2; h++) {
      int at = (o->change & 127) == X_HALVES ? (h ? o->upper : o->shift) : 16 * h;
      for (int l = 0; l < LANES; l++) out[0][l] |= own[l] >> at & 0xffff ? 0xffffu << 16 * h : 0;
    }
  }
  for (int k = 0; k < i->target_count; k++) stain_row(m, w, m->target_list[i->target_at + k], out[k], ~0u);
}
static int taint(Machine *m, Wave *w, const Ins *i) {
  u32 lanes[LANES], room[8][LANES], s0[LANES];
  if (i->taint == T_PAIR || i->taint == T_HALVES) { taint_parts(m, w, i); return 0; }
  if (i->taint == T_LINEAR || i->taint == T_BITWISE || i->taint == T_SELECT) {
    const u32 *s[8];
    u32 own[8][LANES], bad[LANES], any = 0;
    memset(bad, 0, sizeof bad);
    for (int k = 0; k < i->words; k++) {
      s[k] = read_word(m, w, &i->w[k], room[k], 0);
      any |= stale_word(m, w, &i->w[k], own[k]);
    }
    if (i->taint == T_LINEAR) {
      u32 *d[4] = {s0};
      for (int k = 0; k < i->words; k++) {
        if (i->p[0] >> k & 1) s[k] = own[k];
        else for (int l = 0; l < LANES; l++) bad[l] |= own[k][l] ? ~0u : 0;
      }
      kvc_alu[i->fn](d, s, LANES, (u32)i->imm);
    } else if (i->taint == T_SELECT) {
      u32 low = in_set(w->stale, SCALARS + i->w[2].index) ? w->SP[i->w[2].index] : 0;
      u32 high = in_set(w->stale, SCALARS + i->w[2].index + 1) ? w->SP[i->w[2].index + 1] : 0;
      u64 mask = low | (u64)high << 32;
      for (int l = 0; l < LANES; l++) { s0[l] = s[2][l] ? own[1][l] : own[0][l]; bad[l] = -(u32)(mask >> l & 1); }
    } else {  /* p[0]: 0 any bit of either, 1 and, 2 or */
      for (int l = 0; l < LANES; l++) {
        u32 a = s[0][l], b = i->words > 1 ? s[1][l] : 0, pa = own[0][l], pb = i->words > 1 ? own[1][l] : 0;
        if (i->p[0] == 2) { a = ~a; b = ~b; }
        s0[l] = i->p[0] ? (pa & (b | pb)) | (pb & a) : pa | pb;
      }
    }
    for (int l = 0; l < LANES; l++) s0[l] |= bad[l];
    stain_row(m, w, m->target_list[i->target_at], s0, ~0u);
    return 0;
  }
  u32 any = stale_lanes(m, w, i, lanes);
  if (i->taint == T_DEMAND) {
    if (any) {
      u32 active = 0;
      for (int l = 0; l < LANES; l++) active |= lanes[l] & w->em[l];
      if (active || i->op == OP_SMEM) return UNWRITTEN;
    }
    if (i->op == OP_LOAD || i->op == OP_LDS_READ) return 0;  /* these see to their targets themselves */
    stain_targets(m, w, i, 0);
    return 0;
  }
  if (i->taint == T_OWN) return 0;
  if (i->dpp >= 0) {  /* lanes move, and some keep what they held */
    const Dpp *dpp = &m->dpp[i->dpp];
    int partly = !dpp->zero_fill;
    for (int l = 0; l < LANES; l++) partly |= !dpp->write[l];
    for (int k = 0; partly && k < i->target_count; k++) any |= (u32)in_set(w->stale, m->target_list[i->target_at + k]);
    if (any) for (int l = 0; l < LANES; l++) lanes[l] = ~0u;
  }
  if (i->taint == T_LOW_FIRST) {  /* sums of 64 bits: the low dword does not depend on the high words (p[0]) */
    memset(s0, 0, sizeof s0);
    for (int k = 0; k < i->words; k++)
      if (!(i->p[0] >> k & 1) && stale_word(m, w, &i->w[k], room[0]))
        for (int l = 0; l < LANES; l++) s0[l] |= room[0][l] ? ~0u : 0;
  }
  stain_targets(m, w, i, any ? lanes : 0);
  if (i->taint == T_LOW_FIRST) stain_row(m, w, m->target_list[i->target_at], s0, ~0u);
  return 0;
}

/* ---- outstanding operations */

static void refresh(Wave *w) {
  memset(w->busy, 0, sizeof w->busy);
  for (int c = 0; c < 2; c++)
    for (int k = 0; k < w->length[c]; k++) {
      const u64 *set = w->queue[c][(w->head[c] + k) % RING].set;
      for (int j = 0; j < SET_WORDS; j++) w->busy[j] |= set[j];
    }
  watch_again(w);
}
static int unordered(const Wave *w, int c) {
  for (int k = 0; k < w->length[c]; k++)
    if (w->queue[c][(w->head[c] + k) % RING].tag & (TAG_SMEM | TAG_FLAT)) return 1;
  return 0;
}
static void land(Machine *m, const Wave *w, const Pending *e);
static void drop(Machine *m, Wave *w, int c, int count) {
  for (int k = 0; k < count; k++) {
    const Pending *e = &w->queue[c][(w->head[c] + k) % RING];
    if (e->tag == TAG_DMA) land(m, w, e);
  }
  w->head[c] = (w->head[c] + count) % RING; w->length[c] -= count; }
static Pending *append(Wave *w, int c, int tag) {
  if (w->length[c] >= RING) return 0;
  Pending *e = &w->queue[c][(w->head[c] + w->length[c]++) % RING];
  memset(e->set, 0, sizeof e->set);
  e->tag = tag;
  e->count = 0;
  return e;
}
/* an operation that will write the instruction's targets (none for stores) is on its way */
static int issue(Machine *m, Wave *w, const Ins *i, int c, int tag, int writes) {
  if (!m->check_waits) return 0;
  Pending *e = append(w, c, tag);
  if (!e) return REFUSED;
  if (writes) for (int j = 0; j < SET_WORDS; j++) {
    e->set[j] = i->writes[j];
    w->busy[j] |= e->set[j];
    w->watch[j] |= e->set[j];
  }
  /* a counter that is full holds an operation back until the oldest has returned */
  if (w->length[c] > (c ? 15 : 63) && !unordered(w, c)) { drop(m, w, c, 1); refresh(w); }
  return 0;
}
static void wait_for(Machine *m, Wave *w, int vm, int lgkm) {
  if (vm >= 0 && w->length[0] > vm) drop(m, w, 0, w->length[0] - vm);
  if (lgkm == 0) drop(m, w, 1, w->length[1]);
  else if (lgkm > 0 && w->length[1] > lgkm && !unordered(w, 1)) drop(m, w, 1, w->length[1] - lgkm);
  refresh(w);
}
static int hazard(const Wave *w, const Ins *i) {
  for (int c = 0; c < 2; c++)
    for (int k = 0; k < w->length[c]; k++) {
      const Pending *e = &w->queue[c][(w->head[c] + k) % RING];
      const u64 *touched = i->order == c + 1 && !(e->tag & (TAG_SMEM | TAG_FLAT)) ? i->reads : i->both;
      for (int j = 0; j < SET_WORDS; j++) if (e->set[j] & touched[j]) return HAZARD;
    }
  return 0;
}

/* ---- global memory */

static Buffer *find(Machine *m, u64 low, u64 high) {
  Buffer *b = &m->buffers[m->last_buffer];
  if (low - b->start < b->size && high - b->start <= b->size) return b;
  for (int k = 0; k < m->buffer_count; k++) {
    b = &m->buffers[k];
    if (low - b->start < b->size && high - b->start <= b->size) { m->last_buffer = k; return b; }
  }
  return 0;
}
/* one buffer for all lanes of `mask`, or null where they lie in several or outside */
static Buffer *find_all(Machine *m, const u64 *address, u64 mask, int width) {
  u64 low = ~0ull, high = 0;
  for (int l = 0; l < LANES; l++) {
    u64 on = -(u64)(mask >> l & 1), a = address[l];
    u64 lo = a | ~on, hi = a & on;
    low = lo < low ? lo : low;
    high = hi > high ? hi : high;
  }
  return find(m, low, high + (u64)width);
}
static void preserve(Buffer *b) {
  if (b->saved) return;
  memcpy(b->kept, b->data, b->padded);
  if (b->written) memcpy(b->kept_written, b->written, b->padded);
  b->saved = 1;
}
static int addresses(Machine *m, Wave *w, const Ins *i, u64 *out, u64 *mask, int width) {
  const i32 *p = i->p;
  const u32 *v = w->V + p[1] * LANES;
  *mask = w->exec;
  if (p[0] == SPACE_SADDR) {
    u64 base = pair_of(w, p[2]) + (u64)(i64)p[3];
    for (int l = 0; l < LANES; l++) out[l] = v[l] + base;
  } else if (p[0] == SPACE_PAIR) {
    const u32 *high = v + LANES;
    u64 delta = (u64)(i64)p[3];
    for (int l = 0; l < LANES; l++) out[l] = (v[l] | (u64)high[l] << 32) + delta;
  } else {
    int desc = p[2], offen = p[7] & 1, idxen = p[7] >> 1 & 1;
    u32 flags = w->S[desc + 3];
    if (flags & ADD_TID || w->S[desc + 1] >> 31) return REFUSED;
    u64 base = pair_of(w, desc) & 0xffffffffffffull;
    i64 stride = w->S[desc + 1] >> 16 & 0x3fff, records = w->S[desc + 2], extra = scalar_word(m, w, &i->w[0]);
    const u32 *o = v + (idxen ? LANES : 0);
    u64 inside = 0;
    for (int l = 0; l < LANES; l++) {
      i64 offset = (offen ? (i64)o[l] : 0) + p[3];
      int ok = idxen ? (i64)v[l] < records : offset + width - 1 < records - extra;
      offset += idxen ? (i64)v[l] * stride : 0;
      out[l] = (u64)offset + base + (u64)extra;
      inside |= (u64)ok << l;
    }
    *mask &= inside;
  }
  return 0;
}
static int aligned(const u64 *address, u64 mask, int width) {
  u64 low = 0;
  for (int l = 0; l < LANES; l++) low |= mask >> l & 1 ? address[l] : 0;
  return !(low & (u64)((width < 4 ? width : 4) - 1));
}
/* distinct 64-byte lines of a full wave, on a sample of the executions as in the NumPy tier */
static void count_lines(Machine *m, const Ins *i, const u64 *address, u64 mask) {
  Stats *t = &m->stats[i - m->code];
  if (mask != ~0ull) return;
  t->executions++;
  if (t->executions > 2 && (t->executions & 63)) return;
  int distinct = 0;
  for (int l = 0; l < LANES; l++) {
    int seen = 0;
    for (int k = 0; k < l && !seen; k++) seen = address[k] >> 6 == address[l] >> 6;
    distinct += !seen;
  }
  t->lines += distinct;
  t->line_samples += 1;
}
INLINE u32 narrow(u32 v, int width, int flags) {
  if (width == 1) return flags & 1 ? (u32)(i32)(i8)v : v & 255;
  return width == 2 ? (flags & 1 ? (u32)(i32)(i16)v : v & 0xffff) : v;
}
/* bind what a load returned: registers from `row`, lanes of EXEC; `stale` lanes hold values never written */
static void bind_loaded(Machine *m, Wave *w, int row, u32 (*value)[LANES], int width, int flags, u64 stale) {
  int count = width < 4 ? 1 : width / 4;
  u32 field = flags & 2 ? (flags & 4 ? 0xffff0000u : 0xffffu) : ~0u;
  for (int k = 0; k < count; k++) {
    u32 *v = w->V + (row + k) * LANES;
    if (width < 4) for (int l = 0; l < LANES; l++) value[k][l] = narrow(value[k][l], width, flags);
    if (flags & 2)
      for (int l = 0; l < LANES; l++) value[k][l] = (flags & 4 ? value[k][l] << 16 : value[k][l] & 0xffff) | (v[l] & ~field);
    write_row(w, row + k, value[k]);
    int reg = set_of_row(m, row + k);
    if (stale) {
      u32 bits[LANES];
      for (int l = 0; l < LANES; l++) bits[l] = -(u32)(stale >> l & 1);
      stain_row(m, w, reg, bits, field);
    } else if (in_set(w->stale, reg)) stain_row(m, w, reg, 0, field);
  }
}
static int load(Machine *m, Wave *w, const Ins *i) {
  u64 at[LANES], mask, stale = 0;
  u32 value[4][LANES] __attribute__((aligned(64)));
  int width = i->p[5], flags = i->p[6], count = width < 4 ? 1 : width / 4;
  int bad = addresses(m, w, i, at, &mask, width);
  if (bad) return bad;
  if (mask) {
    Buffer *b = find_all(m, at, mask, width);
    if (!aligned(at, mask, width)) return MISALIGNED;
    if (mask != ~0ull) memset(value, 0, 4 * LANES * (u32)count);
    for (int l = 0; l < LANES; l++) {
      if (!(mask >> l & 1)) continue;
      Buffer *own = b ? b : find(m, at[l], at[l] + (u64)width);
      if (!own) return OUT_OF_BOUNDS;
      const u8 *from = own->data + (at[l] - own->start);
      if (width == 4) { __builtin_memcpy(&value[0][l], from, 4); }
      else if (width > 4) for (int k = 0; k < count; k++) __builtin_memcpy(&value[k][l], from + 4 * k, 4);
      else value[0][l] = width == 1 ? from[0] : (u32)(from[0] | from[1] << 8);
      if (own->written && m->check_unwritten) {
        const u8 *known = own->written + (at[l] - own->start);
        int all = 1;
        for (int k = 0; k < width; k++) all &= known[k];
        stale |= (u64)!all << l;
      }
    }
  } else memset(value, 0, sizeof value);
  m->stats[i - m->code].bytes += (u64)__builtin_popcountll(mask) * (u64)width;
  count_lines(m, i, at, mask);
  bind_loaded(m, w, i->p[4], value, width, flags, stale);
  if (i->tag == TAG_FLAT) { bad = issue(m, w, i, 1, TAG_FLAT, 1); if (bad) return bad; }
  return issue(m, w, i, 0, i->tag == TAG_FLAT ? TAG_FLAT : TAG_LOAD, 1);
}
static u64 stale_data(Machine *m, Wave *w, int row, int width, int shift) {
  u64 out = 0;
  u32 field = width >= 4 ? ~0u : ((1u << 8 * width) - 1) << shift;
  for (int k = 0; k < (width < 4 ? 1 : width / 4); k++) {
    if (!in_set(w->stale, set_of_row(m, row + k))) continue;
    const u32 *p = w->P + (row + k) * LANES;
    for (int l = 0; l < LANES; l++) out |= (u64)((p[l] & field) != 0) << l;
  }
  return out;
}
INLINE void put_lane(u8 *to, const u32 *data, int l, int width, int shift) {
  if (width >= 4) for (int k = 0; k < width / 4; k++) __builtin_memcpy(to + 4 * k, data + k * LANES + l, 4);
  else { u32 v = data[l] >> shift; to[0] = (u8)v; if (width == 2) to[1] = (u8)(v >> 8); }
}
static int store(Machine *m, Wave *w, const Ins *i) {
  u64 at[LANES], mask;
  int width = i->p[5], shift = i->p[6], bad = addresses(m, w, i, at, &mask, width);
  if (bad) return bad;
  if (stale_data(m, w, i->p[4], width, shift) & mask) return UNWRITTEN;
  if (mask) {
    Buffer *b = find_all(m, at, mask, width);
    if (!aligned(at, mask, width)) return MISALIGNED;
    for (int l = 0; l < LANES; l++) {
      if (!(mask >> l & 1)) continue;
      Buffer *own = b ? b : find(m, at[l], at[l] + (u64)width);
      if (!own || own->read_only) return OUT_OF_BOUNDS;
      preserve(own);
      put_lane(own->data + (at[l] - own->start), w->V + i->p[4] * LANES, l, width, shift);
      if (own->written) memset(own->written + (at[l] - own->start), 1, (u32)width);
    }
  }
  m->stats[i - m->code].bytes += (u64)__builtin_popcountll(mask) * (u64)width;
  count_lines(m, i, at, mask);
  if (i->tag == TAG_FLAT) { bad = issue(m, w, i, 1, TAG_FLAT, 0); if (bad) return bad; }
  return issue(m, w, i, 0, i->tag == TAG_FLAT ? TAG_FLAT : TAG_STORE, 0);
}
static int scalar_load(Machine *m, Wave *w, const Ins *i) {
  const i32 *p = i->p;  /* target, base, count, offset, is a buffer, bit k: operand k is a signed constant */
  u64 base = pair_of(w, p[1]);
  i64 delta = p[3];
  for (int k = 0; k < i->words; k++) {
    u32 v = scalar_word(m, w, &i->w[k]);
    delta += p[5] >> k & 1 ? (i64)(i32)v : (i64)v;
  }
  int zero = 0;
  if (p[4]) { base &= 0xffffffffffffull; zero = delta + 4 * p[2] > (i64)w->S[p[1] + 2]; }
  u64 at = (base + (u64)delta) & ~3ull;
  u32 value[16];
  for (int k = 0; k < p[2]; k++) {
    u32 stale = 0;
    value[k] = 0;
    if (!zero) {
      Buffer *b = find(m, at + 4u * (u32)k, at + 4u * (u32)k + 4);
      if (!b) return OUT_OF_BOUNDS;
      u64 place = at + 4u * (u32)k - b->start;
      __builtin_memcpy(&value[k], b->data + place, 4);
      if (b->written && m->check_unwritten) {
        u32 known;
        __builtin_memcpy(&known, b->written + place, 4);
        stale = known == 0x01010101u ? 0 : ~0u;
      }
    }
    if (stale || in_set(w->stale, SCALARS + p[0] + k)) stain_scalar(w, SCALARS + p[0] + k, stale);
  }
  for (int k = 0; k < p[2]; k++) w->S[p[0] + k] = value[k];
  m->stats[i - m->code].bytes += 4u * (u32)p[2];
  return issue(m, w, i, 1, TAG_SMEM, 1);
}

/* ---- LDS */

static void count_conflicts(Machine *m, const Wave *w, const Ins *i, const u32 *at, int width) {
  Stats *t = &m->stats[i - m->code];
  t->executions++;
  if ((t->executions > 2 && (t->executions & 63)) || w->exec != ~0ull) return;
  int lanes = width <= 4 ? 32 : width == 8 ? 16 : 8, each = width < 4 ? 1 : width / 4, extra = 0;
  for (int first = 0; first < LANES; first += lanes) {
    u32 seen[64];
    int count = 0, most = 0, per_bank[256];
    memset(per_bank, 0, sizeof per_bank);
    for (int l = first; l < first + lanes; l++)
      for (int k = 0; k < each; k++) {
        u32 word = (at[l] >> 2) + (u32)k;
        int known = 0;
        for (int j = 0; j < count && !known; j++) known = seen[j] == word;
        if (known) continue;
        seen[count++] = word;
        int hits = ++per_bank[word % (u32)m->banks];
        most = hits > most ? hits : most;
      }
    extra += most - 1;
  }
  t->conflicts += extra;
  t->conflict_samples += 1;
}
static int lds_addresses(Machine *m, Wave *w, int row, u32 offset, int width, u32 *at) {
  const u32 *v = w->V + row * LANES;
  u32 most = 0, low = 0;
  for (int l = 0; l < LANES; l++) {
    at[l] = v[l] + offset;
    u32 own = at[l] & w->em[l];
    most = own > most ? own : most;
    low |= own;
  }
  if (w->exec && (m->lds_bytes < width || most > (u32)(m->lds_bytes - width))) return OUT_OF_BOUNDS;
  return low & (u32)((width < 4 ? width : 4) - 1) ? MISALIGNED : 0;
}
/* `same`: lanes whose write leaves the bytes as they are, which waves may do side by side */
static int lds_race(Machine *m, const Wave *w, const u32 *at, u64 mask, int width, int writes, u64 same) {
  if (!m->check_races) return 0;
  u32 own = 1u << w->number, bad = 0;
  int shift = __builtin_ctz((u32)m->granule), pieces = width / m->granule < 1 ? 1 : width / m->granule;
  for (int l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    int first = (int)(at[l] >> shift);
    for (int k = first; k < first + pieces; k++) {
      u32 wrote = m->lds_writers[k], read = m->lds_readers[k] & ~wrote;
      /* a wave that wrote these bytes itself, with the value they still have, may read them */
      bad |= writes ? (same >> l & 1 ? read : wrote | m->lds_readers[k]) & ~own : wrote & own ? 0 : wrote;
      if (writes) m->lds_writers[k] |= own; else m->lds_readers[k] |= own;
    }
    m->dirty_low = first < m->dirty_low ? first : m->dirty_low;
    m->dirty_high = first + pieces > m->dirty_high ? first + pieces : m->dirty_high;
  }
  return bad ? RACE : 0;
}
/* a wave must not touch bytes that its own load into LDS is still to write */
static int in_flight(const Machine *m, const Wave *w, const u32 *at, u64 mask, int width) {
  if (!m->flights) return 0;
  int shift = __builtin_ctz((u32)m->granule), pieces = width / m->granule < 1 ? 1 : width / m->granule;
  for (int l = 0; l < LANES; l++)
    for (int k = (int)(at[l] >> shift), end = k + pieces; mask >> l & 1 && k < end; k++)
      if (m->lds_flights[k] >> w->number & 1) return HAZARD;
  return 0;
}
/* the write of a load into LDS counts in every epoch from its issue to its wait */
static int note_flight(Machine *m, const Wave *w, const Pending *e, int on) {
  u32 at[LANES];
  int shift = __builtin_ctz((u32)m->granule), pieces = e->width / m->granule < 1 ? 1 : e->width / m->granule;
  for (int l = 0; l < LANES; l++) {
    at[l] = (u32)(e->base + l * e->width);
    for (int k = (int)(at[l] >> shift), end = k + pieces; e->lanes >> l & 1 && k < end; k++)
      if (on) m->lds_flights[k] |= 1u << w->number; else m->lds_flights[k] &= ~(1u << w->number);
  }
  return lds_race(m, w, at, e->lanes, e->width, 1, 0);
}
static void land(Machine *m, const Wave *w, const Pending *e) {
  m->flights--;
  m->found |= note_flight(m, w, e, 0);
}
static int load_lds(Machine *m, Wave *w, const Ins *i) {
  u64 at[LANES], mask;
  int width = i->p[5], wide = width < 4 ? 4 : width, count = wide / 4;
  if (!m->check_waits) return REFUSED;
  int bad = addresses(m, w, i, at, &mask, width);
  if (bad) return bad;
  i64 base = (i64)w->S[124] + i->p[8];
  if (base + wide * LANES > m->lds_bytes) return OUT_OF_BOUNDS;
  if ((u64)base & (u64)(wide < 4 ? wide - 1 : 3)) return MISALIGNED;
  if (mask && !aligned(at, mask, width)) return MISALIGNED;
  for (int l = 0; l < LANES; l++) {
    if (!(w->exec >> l & 1)) continue;
    u32 value[4] = {0, 0, 0, 0};
    int all = 1;
    if (mask >> l & 1) {
      Buffer *own = find(m, at[l], at[l] + (u64)width);
      if (!own) return OUT_OF_BOUNDS;
      u64 place = at[l] - own->start;
      memcpy(value, own->data + place, (u32)width);
      if (own->written && m->check_unwritten) for (int k = 0; k < width; k++) all &= own->written[place + (u32)k];
    }
    if (width < 4) value[0] = narrow(value[0], width, i->p[6]);
    memcpy(m->lds + base + l * wide, value, 4u * (u32)count);
    memset(m->lds_valid + base + l * wide, all || !m->check_unwritten, (u32)wide);
  }
  m->stats[i - m->code].bytes += (u64)__builtin_popcountll(mask) * (u64)width;
  m->stats[i - m->code].more_bytes += (u64)__builtin_popcountll(w->exec) * (u64)wide;
  count_lines(m, i, at, mask);
  bad = issue(m, w, i, 0, TAG_DMA, 0);
  if (bad) return bad;
  Pending *e = &w->queue[0][(w->head[0] + w->length[0] - 1) % RING];
  e->base = (i32)base;
  e->width = wide;
  e->lanes = w->exec;
  m->flights++;
  return note_flight(m, w, e, 1);
}
/* ds_read_b64_tr: in blocks of 16 lanes a matrix with rows of 16 elements; lane i receives column i */
static void transpose(u32 (*value)[LANES], int bits) {
  u32 out[2][LANES];
  int each = 64 / bits;
  u32 field = (1u << bits) - 1;
  memset(out, 0, sizeof out);
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < each; r++) {
      int from = r * 16 + (l & 15), lane = (l & 48) + from / each, place = from % each * bits, to = r * bits;
      out[to / 32][l] |= (value[place / 32][lane] >> place % 32 & field) << to % 32;
    }
  memcpy(value, out, sizeof out);
}
static int lds_read(Machine *m, Wave *w, const Ins *i) {
  const i32 *p = i->p;  /* target, address, offset, second offset or -1, width, flags */
  int width = p[4], count = width < 4 ? 1 : width / 4, halves = p[3] < 0 ? 1 : 2, bad;
  u32 at[2][LANES], value[2][4][LANES] __attribute__((aligned(64)));
  u64 stale[2] = {0, 0};
  for (int h = 0; h < halves; h++) {
    bad = lds_addresses(m, w, p[1], (u32)(h ? p[3] : p[2]), width, at[h]);
    if (bad) return bad;
    bad = lds_race(m, w, at[h], w->exec, width, 0, 0);
    if (bad || (bad = in_flight(m, w, at[h], w->exec, width))) return bad;
    count_conflicts(m, w, i, at[h], width);
    for (int l = 0; l < LANES; l++) {
      if (!(w->exec >> l & 1)) continue;
      const u8 *from = m->lds + at[h][l], *known = m->lds_valid + at[h][l];
      int all = 1;
      if (width >= 4) for (int k = 0; k < count; k++) {
        u32 four;
        __builtin_memcpy(&value[h][k][l], from + 4 * k, 4);
        __builtin_memcpy(&four, known + 4 * k, 4);
        all &= four == 0x01010101u;
      } else {
        value[h][0][l] = width == 1 ? from[0] : (u32)(from[0] | from[1] << 8);
        all = known[0] & (width == 1 ? 1 : known[1]);
      }
      stale[h] |= (u64)!all << l;
    }
  }
  m->stats[i - m->code].bytes += (u64)__builtin_popcountll(w->exec) * (u64)(width * halves);
  if (p[7]) {
    if (w->exec != ~0ull) return REFUSED;
    transpose(value[0], p[7]);
    for (int b = 0; b < LANES; b += 16) if (stale[0] >> b & 0xffff) stale[0] |= 0xffffull << b;
  }
  for (int h = 0; h < halves; h++)
    bind_loaded(m, w, p[0] + h * count, value[h], width, p[5], m->check_unwritten ? stale[h] : 0);
  bad = issue(m, w, i, 1, TAG_DS, 1);
  if (bad || !m->check_waits || !m->check_races) return bad;
  Pending *e = &w->queue[1][(w->head[1] + w->length[1] - 1) % RING];
  if (w->length[1] > SLOTS) return REFUSED;
  e->width = width;
  e->slot = w->next_slot++ % SLOTS;
  for (int h = 0; h < halves; h++)
    for (int l = 0; l < LANES; l++) if (w->exec >> l & 1) w->address[e->slot][e->count++] = at[h][l];
  return 0;
}
static int lds_write(Machine *m, Wave *w, const Ins *i) {
  const i32 *p = i->p;  /* data, address, offset, second offset or -1, width, shift, second data */
  int width = p[4], halves = p[3] < 0 ? 1 : 2;
  for (int h = 0; h < halves; h++) {
    u32 at[LANES];
    int row = h ? p[6] : p[0], bad = lds_addresses(m, w, p[1], (u32)(h ? p[3] : p[2]), width, at);
    if (bad) return bad;
    u64 same = 0;
    for (int l = 0; l < LANES; l++) {
      u8 fresh[16];
      if (!(w->exec >> l & 1) || !m->check_races) continue;
      put_lane(fresh, w->V + row * LANES, l, width, p[5]);
      int equal = 1;
      for (int k = 0; k < width; k++) equal &= fresh[k] == m->lds[at[l] + (u32)k];
      same |= (u64)equal << l;
    }
    bad = lds_race(m, w, at, w->exec, width, 1, same);
    if (bad || (bad = in_flight(m, w, at, w->exec, width))) return bad;
    count_conflicts(m, w, i, at, width);
    u64 stale = m->check_unwritten ? stale_data(m, w, row, width, p[5]) : 0;
    for (int l = 0; l < LANES; l++) {
      if (!(w->exec >> l & 1)) continue;
      put_lane(m->lds + at[l], w->V + row * LANES, l, width, p[5]);
      memset(m->lds_valid + at[l], !(stale >> l & 1), (u32)width);
    }
    m->stats[i - m->code].bytes += (u64)__builtin_popcountll(w->exec) * (u64)width;
  }
  return issue(m, w, i, 1, TAG_DS_WRITE, 0);
}
/* an epoch ends: only reads that have not been waited for reach into the next one */
static void next_epoch(Machine *m) {
  if (!m->check_races) return;
  if (m->dirty_high > m->dirty_low) {
    u32 size = 4 * (u32)(m->dirty_high - m->dirty_low);
    memset(m->lds_writers + m->dirty_low, 0, size);
    memset(m->lds_readers + m->dirty_low, 0, size);
  }
  m->dirty_low = 1 << 30;
  m->dirty_high = 0;
  for (int n = 0; n < m->waves_per_group; n++) {
    Wave *w = &m->waves[n];
    if (w->state == ENDED) continue;
    for (int k = 0; k < w->length[1]; k++) {
      const Pending *e = &w->queue[1][(w->head[1] + k) % RING];
      if (e->tag != TAG_DS || !e->count) continue;
      for (int j = 0; j < e->count; j += LANES) {
        int some = e->count - j < LANES ? e->count - j : LANES;
        m->found |= lds_race(m, w, w->address[e->slot] + j, some == LANES ? ~0ull : (1ull << some) - 1, e->width, 0, 0);
      }
    }
    for (int k = 0; k < w->length[0]; k++) {
      const Pending *e = &w->queue[0][(w->head[0] + k) % RING];
      if (e->tag == TAG_DMA) m->found |= note_flight(m, w, e, 1);
    }
  }
}

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
static int permute(Machine *m, Wave *w, const Ins *i) {
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

static void elements(const Wave *w, int row, int per_lane, int kind, const float *table, float *out) {
  const u32 *v = w->V + row * LANES;
  for (int j = 0; j < per_lane; j++)
    for (int l = 0; l < LANES; l++) {
      float x;
      if (kind == M_F32) x = float_of(v[j * LANES + l]);
      else if (kind == M_F16) x = from_half(v[j / 2 * LANES + l] >> 16 * (j & 1));
      else if (kind == M_BF16) x = float_of(j & 1 ? v[j / 2 * LANES + l] & 0xffff0000u : v[j / 2 * LANES + l] << 16);
      else if (kind == M_I8) x = (float)(i8)(v[j / 4 * LANES + l] >> 8 * (j & 3));
      else if (kind == M_TABLE) x = table[v[j / 4 * LANES + l] >> 8 * (j & 3) & 255];
      else {
        u32 b = v[j * LANES + l], rounded = (b + 0xfff + (b >> 13 & 1)) & 0xffffe000u;
        x = float_of((b & 0x7f800000u) == 0x7f800000u ? b : rounded);
      }
      out[l * per_lane + j] = x;
    }
}
static int matrix(Machine *m, Wave *w, const Ins *i) {
  const Matrix *x = &m->matrices[i->fn];
  const i32 *p = i->p;  /* target, left, right, accumulator row or -1 (then constant w[0]), registers, words of a, b */
  float left[LANES * 32], right[LANES * 32], by_k[64 * 128], sum[LANES * 32];
  elements(w, p[1], x->per_lane, x->left, x->left_table, left);
  elements(w, p[2], x->per_lane, x->right, x->right_table, right);
  int size = x->m * x->n;
  for (int b = 0; b < x->blocks; b++) {
    const i64 *rows = x->left_index + b * x->m * x->k, *columns = x->right_index + b * x->n * x->k;
    for (int c = 0; c < x->n; c++) for (int k = 0; k < x->k; k++) by_k[k * x->n + c] = right[columns[c * x->k + k]];
    for (int r = 0; r < x->m; r++) {
      float line[64];
      for (int c = 0; c < x->n; c++) line[c] = 0;
      for (int k = 0; k < x->k; k++) {
        float a = left[rows[r * x->k + k]];
        for (int c = 0; c < x->n; c++) line[c] = fma32(a, by_k[k * x->n + c], line[c]);
      }
      float *to = x->m >= 16 ? sum + b * size + r * x->n : sum + (r * x->blocks + b) * x->n;
      for (int c = 0; c < x->n; c++) to[c] = line[c];
    }
  }
  u32 spoiled = 0, constant = p[3] < 0 ? m->constants[i->w[0].index][0] : 0;
  for (int k = 0; k < i->source_count; k++) {
    int reg = m->sources[i->source_at + k];
    if (!in_set(w->stale, reg)) continue;
    for (int l = 0; l < LANES; l++) spoiled |= w->P[row_of(m, reg) * LANES + l];
  }
  for (int j = 0; j < p[4]; j++) {
    u32 *to = w->V + (p[0] + j) * LANES, *stain = w->P + (p[0] + j) * LANES, any = 0;
    const u32 *c = p[3] < 0 ? 0 : w->V + (p[3] + j) * LANES;
    const float *s = sum + j * LANES;
    for (int l = 0; l < LANES; l++) {
      u32 add = c ? c[l] : constant;
      if (x->result) to[l] = (u32)(i32)s[l] + add;
      else to[l] = bits_of(c || constant ? s[l] + float_of(add) : s[l]);
    }
    int kept = p[3] >= 0 && in_set(w->stale, set_of_row(m, p[3] + j)), reg = set_of_row(m, p[0] + j);
    if (!spoiled && !kept && !in_set(w->stale, reg)) continue;
    for (int l = 0; l < LANES; l++) {
      stain[l] = (kept ? w->P[(p[3] + j) * LANES + l] : 0) | (spoiled ? ~0u : 0);
      any |= stain[l];
    }
    mark(w, reg, any != 0);
  }
  return 0;
}

/* ---- control */

static u64 wide_source(Machine *m, const Wave *w, const Ins *i) {
  return scalar_word(m, w, &i->w[0]) | (u64)scalar_word(m, w, &i->w[1]) << 32;
}
static int save_exec(Machine *m, Wave *w, const Ins *i) {
  u64 s = wide_source(m, w, i), e = w->exec, r = 0;
  switch (i->p[1]) {
  case 0: r = s & e; break;
  case 1: r = s | e; break;
  case 2: r = s ^ e; break;
  case 3: r = ~s & e; break;
  case 4: r = s & ~e; break;
  case 5: r = ~s | e; break;
  case 6: r = s | ~e; break;
  case 7: r = ~(s & e); break;
  case 8: r = ~(s | e); break;
  case 9: r = ~(s ^ e); break;
  }
  for (int k = 0; k < 2; k++) {
    if (i->w[k].kind != W_SCALAR || !in_set(w->stale, SCALARS + i->w[k].index)) continue;
    u32 own = w->SP[i->w[k].index], half = (u32)(e >> 32 * k);
    if (i->p[1] == 0 || i->p[1] == 3 ? own & half : own) return UNWRITTEN;
  }
  set_pair(w, EXEC_LO, r);
  set_pair(w, i->p[0], i->p[2] ? r : e);
  w->S[SCC] = r != 0;
  for (int k = 0; k < i->target_count; k++) stain_scalar(w, m->target_list[i->target_at + k], 0);
  return 0;
}
static int taken(const Wave *w, int condition) {
  switch (condition) {
  case 0: return !w->S[SCC];
  case 1: return w->S[SCC] != 0;
  case 2: return pair_of(w, 106) == 0;
  case 3: return pair_of(w, 106) != 0;
  case 4: return w->exec == 0;
  }
  return w->exec != 0;
}
static int jump_to(Machine *m, Wave *w, u64 target) {
  u64 index = (target - CODE_BASE) / 8;
  if (target < CODE_BASE || (target - CODE_BASE) % 8 || index >= (u64)m->code_count) return WILD_JUMP;
  w->pc = (i32)index;
  return 0;
}
static int pending_write(const Wave *w) {
  for (int k = 0; k < w->length[1]; k++) if (w->queue[1][(w->head[1] + k) % RING].tag == TAG_DS_WRITE) return 1;
  return 0;
}

static int perform(Machine *m, Wave *w, const Ins *i) {
  switch (i->op) {
  case OP_ALU: if (i->scalar) alu_scalar(m, w, i); else alu_vector(m, w, i); return 0;
  case OP_NOP: return 0;
  case OP_JUMP: w->pc = i->jump; return 0;
  case OP_BRANCH: if (taken(w, i->p[0])) w->pc = i->jump; return 0;
  case OP_END: return ENDED;
  case OP_BARRIER: return m->waves_per_group > 1 && pending_write(w) ? HAZARD : AT_BARRIER;
  case OP_LOAD_LDS: return load_lds(m, w, i);
  case OP_WAIT: if (m->check_waits) wait_for(m, w, i->p[0], i->p[1]); return m->found;
  case OP_SAVEEXEC: return save_exec(m, w, i);
  case OP_LOAD: return load(m, w, i);
  case OP_STORE: return store(m, w, i);
  case OP_LDS_READ: return lds_read(m, w, i);
  case OP_LDS_WRITE: return lds_write(m, w, i);
  case OP_SMEM: return scalar_load(m, w, i);
  case OP_MFMA: return matrix(m, w, i);
  case OP_READLANE: return read_lane(m, w, i);
  case OP_WRITELANE: return write_lane(m, w, i);
  case OP_SWAP: return swap(m, w, i);
  case OP_PERMUTE: case OP_SWIZZLE: return permute(m, w, i);
  case OP_FENCE: return issue(m, w, i, 0, TAG_STORE, 0);
  case OP_GETPC: set_pair(w, i->p[0], CODE_BASE + (u64)w->pc * 8); stain_targets(m, w, i, 0); return 0;
  case OP_SETPC: {
    u64 target = pair_of(w, i->p[1]);
    if (i->p[0] >= 0) { set_pair(w, i->p[0], CODE_BASE + (u64)w->pc * 8); stain_targets(m, w, i, 0); }
    return jump_to(m, w, target);
  }
  }
  return REFUSED;
}

/* until a barrier, the end, or a code that ends the run */
static int run_wave(Machine *m, Wave *w) {
  for (;;) {
    if ((u32)w->pc >= (u32)m->code_count) return WILD_JUMP;
    const Ins *i = &m->code[w->pc];
    m->where = w->pc;
    if (i->starts) m->counts[w->pc]++;
    if (++w->executed > m->limit) return LIMIT;
    u64 met = 0;
    for (int j = 0; j < SET_WORDS; j++) met |= w->watch[j] & i->both[j];
    if (met) {
      if (m->check_waits && hazard(w, i)) return HAZARD;
      u64 old = 0;
      for (int j = 0; j < SET_WORDS; j++) old |= w->stale[j] & i->both[j];
      if (old && i->op != OP_REFUSED) { int bad = taint(m, w, i); if (bad) return bad; }
    }
    w->pc++;
    int r = perform(m, w, i);
    if (r) return r;
  }
}

/* ---- entry */

int kvc_wave_bytes(void) { return (int)sizeof(Wave); }
int kvc_sizes(int which) {
  const int sizes[] = {sizeof(Ins), sizeof(Buffer), sizeof(Matrix), sizeof(Dpp), sizeof(Stats), sizeof(Machine)};
  return sizes[which];
}

static void start(Machine *m, Wave *w, int number, const u32 *scalars, const u32 *ids, u64 exec, const u64 *stale) {
  u32 *V = w->V, *P = w->P;
  memset(w, 0, __builtin_offsetof(Wave, queue));
  w->V = V;
  w->P = P;
  w->number = number;
  for (int k = 0; k < m->vector_rows * LANES; k++) V[k] = 0xdeadbeefu;
  memset(P, 255, 4u * (u32)m->vector_rows * LANES);
  memset(w->SP, 255, sizeof w->SP);
  memcpy(w->S, scalars, 4 * 128);
  memcpy(V, ids, 4 * LANES);
  memcpy(w->stale, stale, sizeof w->stale);
  watch_again(w);
  set_pair(w, EXEC_LO, exec);
}

/* One workgroup. `scalars` [waves, 128], `ids` [waves, 64], `exec` [waves], `stale` a register set.
   Returns 0 or the code that ended the run; `where` is then the instruction. */
int kvc_run(Machine *m, const u32 *scalars, const u32 *ids, const u64 *exec, const u64 *stale) {
  int n = m->waves_per_group;
  memset(m->lds, 0, (u32)m->lds_bytes);
  if (m->flights) memset(m->lds_flights, 0, 4u * (u32)(m->lds_bytes / m->granule + 1));
  m->flights = m->found = 0;
  memset(m->lds_valid, m->check_unwritten ? 0 : 1, (u32)m->lds_bytes);
  for (int k = 0; k < n; k++) start(m, &m->waves[k], k, scalars + 128 * k, ids + LANES * k, exec[k], stale);
  for (;;) {
    int waiting = 0, ended = 0, place = -1;
    next_epoch(m);
    if (m->found) return m->found;
    for (int k = 0; k < n; k++) {
      Wave *w = &m->waves[(k + m->seed) % n];
      if (w->state != ENDED) {
        int r = run_wave(m, w);
        if (r != AT_BARRIER && r != ENDED) return r;
        w->state = r;
      }
      if (w->state == ENDED) { ended++; continue; }
      if (place >= 0 && place != w->pc) return BARRIER;
      place = w->pc;
      waiting++;
    }
    if (!waiting) { next_epoch(m); return m->found; }
    if (ended) return BARRIER;
  }
}

/* One function on lanes, for the tests that compare the forms with the opcode table. */
void kvc_call(int fn, u32 *const *d, const u32 *const *s, int n, u32 imm) { kvc_alu[fn](d, s, n, imm); }
