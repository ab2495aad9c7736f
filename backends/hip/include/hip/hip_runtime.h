// Stands in for HIP's <hip/hip_runtime.h> (the kernel side of HIP) where no ROCm is installed.
#pragma once
#include "../kvc_hip_device.h"
