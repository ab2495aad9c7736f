// Stands in for HIP's <hip/hip_bf16.h> (bfloat16) where no ROCm is installed.
#pragma once
#include "../kvc_hip_bf16.h"
