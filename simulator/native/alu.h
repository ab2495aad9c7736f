/* ALU instructions, and what they do to values never written. */

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
/* and, or and their kin on scalar words, bit by bit: p[0] 0 for any bit of either, 1 and, 2 or; p[1]: b inverted */
static void taint_scalar_bits(Machine *m, Wave *w, const Ins *i) {
  int each = i->targets - (i->d[i->targets - 1].kind == D_SCC);
  u32 whole = 0, out[2];
  for (int k = 0; k < each; k++) {
    u32 v[2] = {0, 0}, p[2] = {0, 0};
    for (int j = 0; j * each + k < i->words; j++) {
      const Word *o = &i->w[j * each + k];
      v[j] = scalar_word(m, w, o);
      p[j] = o->kind == W_SCALAR && in_set(w->stale, SCALARS + o->index) ? w->SP[o->index] : 0;
    }
    if (i->p[1]) v[1] = ~v[1];
    if (i->p[0] == 2) { v[0] = ~v[0]; v[1] = ~v[1]; }
    whole |= out[k] = i->p[0] ? (p[0] & (v[1] | p[1])) | (p[1] & v[0]) : p[0] | p[1];
  }
  for (int k = 0; k < i->target_count; k++)
    stain_scalar(w, m->target_list[i->target_at + k], k < each ? out[k] : whole ? ~0u : 0);
}
static int taint(Machine *m, Wave *w, const Ins *i) {
  u32 lanes[LANES], room[8][LANES], s0[LANES];
  if (i->taint == T_BITWISE && i->scalar) { taint_scalar_bits(m, w, i); return 0; }
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
