/* What the machine works on: records of instructions, waves, buffers; registers, and which bits of them were never
   written. The layouts are those of `records.py` and `run.py`, which check their sizes. */

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
typedef struct {
  u64 bytes, more_bytes;
  double lines, line_samples, conflicts, conflict_samples;
  u64 executions;
} Stats;
typedef struct {
  const Ins *code; const i32 *sources; const u32 *source_bits; const i32 *target_list; const u32 (*constants)[LANES];
  const Dpp *dpp; const Matrix *matrices; Buffer *buffers; Stats *stats; u64 *counts;
  Wave *waves; u8 *lds, *lds_valid; u32 *lds_writers, *lds_readers, *lds_flights;
  u64 limit;
  i32 code_count, buffer_count, vector_rows, accumulators_at, waves_per_group, lds_bytes, granule, banks;
  i32 check_races, check_waits, check_unwritten, last_buffer, where, dirty_low, dirty_high, seed, flights, found, entry;
} Machine;

/* ---- registers and sets */

INLINE int row_of(const Machine *m, int reg) { return reg < 256 ? reg : reg - 256 + m->accumulators_at; }
INLINE int set_of_row(const Machine *m, int row) {
  return row < m->accumulators_at ? row : row - m->accumulators_at + 256;
}
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
  case X_HALVES:
    for (int l = 0; l < LANES; l++) out[l] = ((((in[l] >> sh) & 0xffff) | (in[l] >> up) << 16) & keep) ^ flip;
    break;
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
  case W_MASK: {
    u64 mask = pair_of(w, o->index);
    for (int l = 0; l < LANES; l++) room[l] = (u32)(mask >> l & 1);
    return room;
  }
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
