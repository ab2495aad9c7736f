// Stands in for HIP's <hip/hip_bfloat16.h> (the older bfloat16 class) where no ROCm is installed.
#pragma once
#include "../kvc_hip_bf16.h"
